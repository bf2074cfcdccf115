// Runs models on ONNX Runtime's WebGPU provider: requests and answers are lines of JSON.
//
// usage: webgpu_worker.js DESCRIPTOR
//
// A request has `model`, `level` (of ONNX Runtime's graph optimisation), `samples` (a list of inputs
// by name, each {type, dims, file}), and `folder`, which takes the outputs. The answer, written to
// the file descriptor, has `outputs`, of the same form as `samples`, or `error`. Files hold raw
// values, or JSON of strings. The empty request gets the `version` of ONNX Runtime.

const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

const ARRAYS = {
  float16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};

let ort;

function loaded({type, dims, file}) {
  if (type === 'string') return new ort.Tensor(type, JSON.parse(fs.readFileSync(file)), dims);
  if (!(type in ARRAYS)) throw new Error(`an input of type ${type}`);
  const {buffer, byteOffset, byteLength} = fs.readFileSync(file);
  return new ort.Tensor(type, new ARRAYS[type](buffer.slice(byteOffset, byteOffset + byteLength)), dims);
}

function stored({type, dims, data}, file) {
  if (type === 'string') fs.writeFileSync(file, JSON.stringify(data));
  else if (!ArrayBuffer.isView(data)) throw new Error(`an output of type ${type}`);
  else fs.writeFileSync(file, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return {type, dims, file};
}

async function outputs({model, level, samples, folder}) {
  const session = await ort.InferenceSession.create(model, {
    executionProviders: ['webgpu'],
    graphOptimizationLevel: level,
    logSeverityLevel: 4,
  });
  try {
    const found = [];
    for (const [i, sample] of samples.entries()) {
      const feeds = Object.fromEntries(Object.entries(sample).map(([name, s]) => [name, loaded(s)]));
      const results = await session.run(feeds);
      const entries = session.outputNames.map(
        (name, j) => [name, stored(results[name], path.join(folder, `${i} ${j} out`))]);
      found.push(Object.fromEntries(entries));
    }
    return found;
  } finally {
    await session.release();
  }
}

(async () => {
  const answers = Number(process.argv[2]);
  for await (const line of readline.createInterface({input: process.stdin})) {
    let answer;
    try {
      ort ??= require('onnxruntime-node');
      const request = JSON.parse(line);
      answer = request.model ? {outputs: await outputs(request)} : {version: ort.env.versions.node};
    } catch (error) {
      answer = {error: String(error.message ?? error)};
    }
    fs.writeSync(answers, `${JSON.stringify(answer)}\n`);
  }
  // The driver's own end may crash.
  process.reallyExit(0);
})();
