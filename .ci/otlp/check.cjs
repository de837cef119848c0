// Reads an export of spans with OpenTelemetry's own code of the OTLP messages: check.cjs FILE. Each line goes through the
// protocol's binary form and has to come back as it was, so it has no field that the protocol lacks and none of another type.
const assert = require("node:assert");
const fs = require("node:fs");
const { opentelemetry } = require("@opentelemetry/otlp-transformer/build/src/generated/root");
const Request = opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest;

// In OTLP's JSON, ids are hexadecimal; protobuf's own mapping has base64.
const ids = ["traceId", "spanId", "parentSpanId"];

function map(value, id) {
  if (Array.isArray(value)) return value.map((item) => map(item, id));
  if (value === null || typeof value !== "object" || Buffer.isBuffer(value) || value instanceof Uint8Array) return value;
  const out = {};
  for (const [name, member] of Object.entries(value)) {
    if (Array.isArray(member) && member.length === 0) continue; // the same as none
    out[name] = ids.includes(name) ? id(member) : map(member, id);
  }
  return out;
}

const lengths = { traceId: 16, spanId: 8, parentSpanId: 8 };
let spans = 0;
for (const line of fs.readFileSync(process.argv[2], "utf8").split("\n").filter(Boolean)) {
  const given = JSON.parse(line);
  const binary = Request.encode(Request.fromObject(map(given, (hex) => Buffer.from(hex, "hex")))).finish();
  const read = Request.toObject(Request.decode(binary), { longs: String, enums: Number, oneofs: false });
  assert.deepStrictEqual(map(read, (bytes) => Buffer.from(bytes).toString("hex")), map(given, (hex) => hex));
  for (const resource of read.resourceSpans)
    for (const scope of resource.scopeSpans)
      for (const span of scope.spans) {
        spans++;
        for (const name of ids) if (span[name]) assert.strictEqual(span[name].length, lengths[name], name);
        assert.ok(span.name && BigInt(span.startTimeUnixNano) <= BigInt(span.endTimeUnixNano), JSON.stringify(span));
      }
}
assert.ok(spans > 0, "the export has no spans");
console.log(`OpenTelemetry reads ${spans} spans`);
