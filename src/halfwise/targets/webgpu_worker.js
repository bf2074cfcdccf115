// Runs models on ONNX Runtime's WebGPU provider: requests and answers are frames of the TensorRT worker
// (tensorrt/worker.py), on standard input and output.
//
// A request has `model`, `level` (of ONNX Runtime's graph optimisation), `samples` (a list of inputs
// by name, each {type, dims, file}), and `folder`, which takes the outputs. The answer has `outputs`, of
// the same form as `samples`, or `error`. Files hold raw values, or JSON of strings. One without a model
// gets the `version` of ONNX Runtime.

const fs = require('node:fs');
const path = require('node:path');

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

const MAGIC = Buffer.from('\x00\xffHALFWISE\xff\x01', 'latin1');
const BEGIN = MAGIC.length + 12;

function packed(header) {
  const text = Buffer.from(JSON.stringify(header));
  const lengths = Buffer.alloc(12);
  lengths.writeUInt32BE(text.length);
  return Buffer.concat([MAGIC, lengths, text]);
}

async function* requests() {
  let data = Buffer.alloc(0);
  for await (const chunk of process.stdin) {
    data = Buffer.concat([data, chunk]);
    while (data.length >= BEGIN && data.length >= BEGIN + data.readUInt32BE(MAGIC.length)) {
      const end = BEGIN + data.readUInt32BE(MAGIC.length);
      yield JSON.parse(data.subarray(BEGIN, end));
      data = data.subarray(end);
    }
  }
}

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
  for await (const request of requests()) {
    let answer;
    try {
      ort ??= require('onnxruntime-node');
      answer = request.model ? {outputs: await outputs(request)} : {version: ort.env.versions.node};
    } catch (error) {
      answer = {error: String(error.message ?? error)};
    }
    const frame = packed({...answer, id: request.id, kind: 'result'});
    for (let sent = 0; sent < frame.length; ) sent += fs.writeSync(1, frame, sent);
  }
  // The driver's own end may crash.
  process.reallyExit(0);
})();
