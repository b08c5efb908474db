// Runs a portable folder of offramp in ONNX Runtime for the web. Its threshold can be set for each run.

import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web/wasm";

export class Model {
  static async load(folder) {
    const read = async (name) => {
      const answer = await fetch(`${folder}/${name}`);
      if (!answer.ok) throw new Error(`${answer.url}: ${answer.status} ${answer.statusText}`);
      return answer;
    };
    const json = async (name) => (await read(name)).json();
    const [config, ...settings] = await Promise.all(
      ["config.json", "tokenizer.json", "tokenizer_config.json"].map(json),
    );
    if (config.offramp.problem_type === "token_classification") {
      throw new Error(`${folder} tags tokens, and this page is for classifiers`);
    }
    const bytes = new Uint8Array(await (await read("onnx/model.onnx")).arrayBuffer());
    const session = await ort.InferenceSession.create(withoutDefaults(bytes), { logSeverityLevel: 3 });
    return new Model(config.offramp, new Tokenizer(...settings), session);
  }

  constructor(about, tokenizer, session) {
    this.about = about;
    this.tokenizer = tokenizer;
    this.session = session;
    this.specialTokens = tokenizer.encode("").ids.length; // half of them before a text, half after it
  }

  get depth() {
    return this.about.layers.at(-1);
  }

  // The logits and the layer of a text. Without early exit, it runs all layers: no readiness reaches a NaN.
  async run(text, { earlyExit = true } = {}) {
    const ids = this.tokens(text);
    const { policy } = this.about;
    const threshold = [policy.threshold].flat();
    const row = (value) => new ort.Tensor("int64", BigInt64Array.from(ids, value), [1, ids.length]);
    const inputs = {
      input_ids: row(BigInt),
      attention_mask: row(() => 1n),
      token_type_ids: row(() => 0n),
      threshold: new ort.Tensor(
        "float64",
        earlyExit ? threshold : threshold.map(() => NaN),
        Array.isArray(policy.threshold) ? [threshold.length] : [],
      ),
      max_layer: new ort.Tensor("int64", [BigInt((earlyExit ? policy.max_layer : null) ?? this.depth)], []),
    };
    const feeds = Object.fromEntries(this.session.inputNames.map((name) => [name, inputs[name]]));
    const { logits, layer } = await this.session.run(feeds);
    return { logits: [...logits.data], layer: Number(layer.data[0]) };
  }

  // The tokens of a text, truncated as in training: special tokens stay.
  tokens(text) {
    const { ids } = this.tokenizer.encode(text);
    const { max_length, truncation_side } = this.about;
    const ends = this.specialTokens >> 1;
    const excess = Math.max(ids.length - max_length, 0);
    ids.splice(truncation_side === "left" ? ends : max_length - ends, excess);
    return ids;
  }
}

// ONNX Runtime for JavaScript cannot override the default of an input. Without its default, an input is an ordinary
// one. A default is a tensor with a name: field 8 of a protobuf message, "B", then the length, then the name.
function withoutDefaults(bytes) {
  for (const name of ["threshold", "max_layer"]) {
    const field = new TextEncoder().encode(`B${String.fromCharCode(name.length)}${name}`);
    let at = bytes.indexOf(field[0]);
    while (at >= 0 && !field.every((byte, place) => bytes[at + place] === byte)) at = bytes.indexOf(field[0], at + 1);
    if (at < 0) throw new Error(`the graph has no default for ${name}`);
    bytes[at + 2] = "_".charCodeAt(0);
  }
  return bytes;
}
