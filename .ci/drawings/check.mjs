// Reads drawings as Mermaid does: node check.mjs FILE...
import { readFileSync } from "node:fs";
import { JSDOM } from "jsdom";

const { window } = new JSDOM("<!doctype html><body></body>");
globalThis.window = window; // Mermaid expects a browser
globalThis.document = window.document;
const { default: mermaid } = await import("mermaid");
for (const file of process.argv.slice(2)) {
  await mermaid.parse(readFileSync(file, "utf8"));
  console.log(`Mermaid reads ${file}`);
}
