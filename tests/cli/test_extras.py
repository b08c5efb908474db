"""Commands where packages are not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = ("torch", "transformers", "datasets", "accelerate")
MEASURE = ("scipy", "sklearn")


def run_without(missing: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
    code = f"""
import sys
sys.modules |= dict.fromkeys({missing!r})
sys.argv = {["offramp", *map(str, arguments)]!r}
from offramp.cli import main
main()
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "texts.csv"
    file.write_text("text\ngood film\nbad\na b c d\n")
    return file


@pytest.mark.parametrize("command", ["predict", "trace", "bench", "info"])
def test_an_exported_model_runs_with_onnx_runtime_alone(
    exported: Path, texts: Path, tmp_path: Path, command: str
) -> None:
    arguments = {
        "predict": [texts],
        "trace": ["--data", texts, "--out", tmp_path / "x.trace"],
        "bench": ["--data", texts, "--repeats", 1],
        "info": [],
    }
    done = run_without((*TRAIN, *MEASURE, "pyarrow", "onnx"), command, exported, *arguments[command])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("missing", "command", "extras"),
    [
        (("fastapi", "onnxruntime"), "serve", "serve,onnx"),
        (("ray", "onnxruntime"), "predict-files", "ray,onnx"),
        ((*MEASURE, "onnxruntime"), "calibrate", "onnx,measure"),
        (("pyarrow",), "predict", "parquet"),
    ],
)
def test_all_missing_extras_are_named_at_once(
    exported: Path, tmp_path: Path, missing: tuple[str, ...], command: str, extras: str
) -> None:
    trace = tmp_path / "x.trace"
    arguments = {
        "serve": [],
        "predict-files": [tmp_path, "--out", tmp_path / "new"],
        "calibrate": [trace, "--guarantee", 0.1],
        "predict": [tmp_path / "texts.parquet"],
    }
    (tmp_path / "texts.parquet").touch()
    if command == "calibrate":
        data = tmp_path / "texts.csv"
        data.write_text("text\ngood\nbad\n")
        assert run_without((), "trace", exported, "--data", data, "--out", trace).returncode == 0
    done = run_without(missing, command, exported, *arguments[command])
    assert done.returncode == 1
    assert f"pip install 'offramp[{extras}]'" in done.stderr
    assert all(name in done.stderr for name in missing)


def test_an_estimator_names_its_extra(exported: Path) -> None:
    code = f"""
import sys
sys.modules |= dict.fromkeys({MEASURE!r})
import offramp
try:
    offramp.Classifier.from_pretrained({str(exported)!r}).sklearn()
except offramp.MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Classifier.sklearn needs sklearn" in done.stdout
    assert "pip install 'offramp[measure]'" in done.stdout
