// Decode every vector in docs/vectors/ as described in docs/protocol.md, without paceline's code.
// `npm install && npm test`; `node read.mjs FILE.bin` prints a message as JSON.
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { decode, ExtData, ExtensionCodec } from "@msgpack/msgpack";

const VECTORS = new URL("../../docs/vectors/", import.meta.url);
const SAFE = 2n ** 53n;
const hex = (bytes) => Buffer.from(bytes).toString("hex");

// "Framing": return the frames of the message that begins at `start`, and its end
export function framesAt(data, start = 0) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const u64 = (at) => Number(view.getBigUint64(at, true));
  const count = u64(start + 8);
  let at = start + 16 + 8 * count;
  const frames = [];
  for (let i = 0; i < count; i++) {
    const length = u64(start + 16 + 8 * i);
    frames.push(data.subarray(at, at + length));
    at += length;
  }
  if (at > data.length) throw new Error("the message is not complete");
  return { frames, end: at };
}

// Maps as pairs, because keys of JavaScript objects are strings: other keys are wrapped.
class Key {
  constructor(value) { this.value = value; }
}

// msgpack with 64-bit integers as BigInt; extension types are not decoded (including -1, the timestamp)
const extensions = new ExtensionCodec();
extensions.register({ type: -1, encode: () => null, decode: (data) => new ExtData(-1, data) });
function unpack(bytes) {
  const keys = [];
  const mapKeyConverter = (key) => {
    if (typeof key === "string") return key;
    keys.push(key);
    return `\u0000key ${keys.length - 1}`;
  };
  const value = decode(bytes, { useBigInt64: true, extensionCodec: extensions, mapKeyConverter });
  return { value, keyOf: (name) => (name.startsWith("\u0000key ") ? new Key(keys[name.slice(5)]) : name) };
}

// "Messages as JSON": convert a value of a msgpack document. `frames` is null within headers, which contain no placeholders.
function form(value, keyOf, frames) {
  const inner = (x) => form(x, keyOf, frames);
  if (value === null || typeof value === "boolean" || typeof value === "string") return value;
  if (typeof value === "bigint") {
    return value > SAFE || value < -SAFE ? { $int: String(value) } : Number(value);
  }
  if (typeof value === "number") {
    if (Number.isFinite(value)) return value;
    return { $float: Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf" };
  }
  if (value instanceof Uint8Array) return { $bytes: hex(value) };
  if (value instanceof ExtData) return { $ext: [value.type, hex(value.data)] };
  if (Array.isArray(value)) return value.map(inner);
  const names = Object.keys(value);
  if (names.length === 1 && frames !== null) {
    if (names[0] === "__Serialized__") return { $serialized: serialized(value[names[0]], frames) };
    if (names[0] === "__Pickled__") return { $pickled: serialized(value[names[0]], frames) };
  }
  if (names.length === 2 && value.__Set__ === true && frames !== null && Array.isArray(value["as-list"])) {
    return { $set: value["as-list"].map(inner) };
  }
  if (names.every((name) => !name.startsWith("$") && !(keyOf(name) instanceof Key))) {
    return Object.fromEntries(names.map((name) => [name, inner(value[name])]));
  }
  const pairs = names.map((name) => {
    const key = keyOf(name);
    return [key instanceof Key ? inner(key.value) : key, inner(value[name])];
  });
  return { $map: pairs };
}

// "Values": frame k is the header, and contains the number of frames of the value
function serialized(index, frames) {
  const k = Number(index);
  const { value, keyOf } = unpack(frames[k]);
  const count = Number(value["num-sub-frames"]);
  if (k + 1 + count > frames.length) throw new Error("a placeholder points beyond the frames");
  return { header: form(value, keyOf, null), frames: frames.slice(k + 1, k + 1 + count).map(hex) };
}

export function read(frames) {
  const { value, keyOf } = unpack(frames[0]);
  return form(value, keyOf, frames);
}

// fields beside a header that other libraries write differently are for encoders only
function withoutHeaderBytes(json) {
  if (Array.isArray(json)) return json.map(withoutHeaderBytes);
  if (json === null || typeof json !== "object") return json;
  const entries = Object.entries(json).filter(([name]) => name !== "header_hex");
  return Object.fromEntries(entries.map(([name, x]) => [name, withoutHeaderBytes(x)]));
}

function main(argv) {
  if (argv.length) {
    for (const file of argv) console.log(JSON.stringify(read(framesAt(readFileSync(file)).frames)));
    return 0;
  }
  const { vectors } = JSON.parse(readFileSync(new URL("index.json", VECTORS)));
  let different = 0;
  for (const { vector } of vectors) {
    try {
      const data = readFileSync(new URL(`${vector}.bin`, VECTORS));
      const { frames, end } = framesAt(data);
      const expected = withoutHeaderBytes(JSON.parse(readFileSync(new URL(`${vector}.json`, VECTORS))));
      if (end !== data.length) throw new Error(`${data.length - end} bytes are left`);
      if (!isDeepStrictEqual(read(frames), expected)) throw new Error("read otherwise than expected");
    } catch (error) {
      different += 1;
      console.error(`${vector}: ${error.message}`);
    }
  }
  console.log(`${vectors.length - different} of ${vectors.length} vectors are read as they should be`);
  return different ? 1 : 0;
}

process.exitCode = main(process.argv.slice(2));
