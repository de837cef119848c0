// The bodies of the document that client.py uses, as one JSON Schema for a generator of types. node schema.js < openapi.json
import { readFileSync } from "node:fs";

const { components } = JSON.parse(readFileSync(0, "utf8"));
const definitions = JSON.parse(JSON.stringify(components.schemas).replaceAll("#/components/schemas/", "#/definitions/"));
const wanted = ["RunBody", "RunAnswer", "Snapshot", "Frame", "Error", "ApprovalList", "ResumeBody"];
const properties = Object.fromEntries(wanted.map((name) => [name, { $ref: `#/definitions/${name}` }]));
console.log(JSON.stringify({ $schema: "http://json-schema.org/draft-06/schema#", title: "Wire", type: "object", properties, required: wanted, definitions }));
