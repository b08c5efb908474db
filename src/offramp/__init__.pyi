"""The public names: type checkers read this file, and so does `__init__.py`."""

from offramp.data import TASKS as TASKS
from offramp.data import Task as Task
from offramp.errors import MissingExtra as MissingExtra
from offramp.errors import NoSafeThreshold as NoSafeThreshold
from offramp.errors import OfframpError as OfframpError
from offramp.guarantees.certificate import Certificate as Certificate
from offramp.guarantees.certify import Certification as Certification
from offramp.guarantees.certify import certify as certify
from offramp.inference import Classifier as Classifier
from offramp.inference import Prediction as Prediction
from offramp.inference import Runner as Runner
from offramp.inference.collect import collect as collect
from offramp.inference.reranker import Ranked as Ranked
from offramp.inference.reranker import Reranker as Reranker
from offramp.inference.tagger import Span as Span
from offramp.inference.tagger import Spans as Spans
from offramp.inference.tagger import Tagger as Tagger
from offramp.measuring import Budget as Budget
from offramp.measuring import Curve as Curve
from offramp.measuring import Guarantee as Guarantee
from offramp.measuring import MaxLoss as MaxLoss
from offramp.measuring import MinSpeedup as MinSpeedup
from offramp.measuring import Sweep as Sweep
from offramp.measuring import calibrate as calibrate
from offramp.measuring import sweep as sweep
from offramp.models.backbones import BACKBONES as BACKBONES
from offramp.models.config import ExitConfig as ExitConfig
from offramp.models.exit_model import ExitModel as ExitModel
from offramp.models.heads import HeadConfig as HeadConfig
from offramp.models.importers import import_checkpoint as import_checkpoint
from offramp.onnx_export import export as export
from offramp.policy import Policy as Policy
from offramp.reports import report as report
from offramp.reports.stored_policy import store_policy as store_policy
from offramp.retrofits import Retrofit as Retrofit
from offramp.retrofits import retrofit as retrofit
from offramp.rules import RULES as RULES
from offramp.trace import Trace as Trace
from offramp.training import train as train
from offramp.training.recipes import RECIPES as RECIPES
from offramp.training.recipes import Phase as Phase
from offramp.training.recipes import Recipe as Recipe

__version__: str
