// Queries a trace with Perfetto's own trace processor, in WebAssembly.
// node trace_processor.mjs ASSETS TRACE < queries.json  →  a JSON array of rows per query
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [assets, trace] = process.argv.slice(2);
const queries = JSON.parse(readFileSync(0, "utf8"));
console.warn = (...args) => process.stderr.write(`${args.join(" ")}\n`);
console.log = console.warn;

// The bundle is made for a worker of a page.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
Object.defineProperty(globalThis, "location", { value: { href: pathToFileURL(`${assets}/`).href } });
globalThis.wasmBytes = readFileSync(join(assets, "trace_processor.wasm"));
let bundle = readFileSync(join(assets, "engine_bundle.node.js"), "utf8");
for (const [before, after] of [
  ["hasMemory64Support();", "false;"],
  ["locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: globalThis.wasmBytes,"],
  ["const wasmBridge = new", "const wasmBridge = globalThis.bridge = new"],
]) {
  if (!bundle.includes(before)) throw new Error(`the bundle has changed: no ${before}`);
  bundle = bundle.replace(before, after);
}
vm.runInThisContext(bundle);
while (globalThis.bridge.reqBufferAddr === 0) await new Promise((done) => setTimeout(done, 10));

const { EngineBase } = await import(pathToFileURL(join(assets, "engine.mjs")).href);
class Engine extends EngineBase {
  constructor(port) {
    super();
    this.port = port;
    port.onmessage = (message) => this.onRpcResponseBytes(message.data);
  }
  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}
const { port1, port2 } = new MessageChannel();
globalThis.bridge.initialize(port1);
const engine = new Engine(port2);
const content = readFileSync(trace);
const began = process.cpuUsage();
for (let at = 0; at < content.length; at += 32 << 20) await engine.parse(content.subarray(at, at + (32 << 20)));
await engine.notifyEof();
const used = process.cpuUsage(began);
console.warn(`import: ${(used.user + used.system) / 1e6} s of CPU`);
const answers = [];
for (const query of queries) {
  const result = await engine.query(query);
  const columns = result.columns();
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(columns.map((column) => { const value = row.get(column); return typeof value === "bigint" ? Number(value) : value; }));
  }
  answers.push(rows);
}
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
