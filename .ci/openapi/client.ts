// A client that openapi-typescript and openapi-fetch make of the document: it runs an agent, reads the run's state, and
// follows its events. node client.js URL
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Frame = components["schemas"]["Frame"];

const base = (globalThis as unknown as { process: { argv: string[] } }).process.argv[2]!;
const api = createClient<paths>({ baseUrl: base });

const started = await api.POST("/agents/{id}/run", { params: { path: { id: "shout" } }, body: { input: "generated" } });
if (started.error) throw new Error(`${started.error.error}: ${started.error.message}`);
if (started.data.status !== "completed" || started.data.result.output !== "GENERATED") throw new Error(JSON.stringify(started.data));

const state = await api.GET("/runs/{runId}/state", { params: { path: { runId: started.data.runId } } });
if (state.data?.status !== "completed") throw new Error(JSON.stringify(state));

const refused = await api.GET("/runs/{runId}/state", { params: { path: { runId: "none" } } });
if (refused.error?.error !== "run-not-found") throw new Error(JSON.stringify(refused));

const stream = await api.POST("/agents/{id}/stream", {
  params: { path: { id: "shout" } }, body: { input: "streamed" }, headers: { Accept: "text/event-stream" }, parseAs: "text",
});
let text = "";
let ended = "";
for (const line of (stream.data as unknown as string).split("\n")) {
  if (!line.startsWith("data: ")) continue;
  const frame = JSON.parse(line.slice(6)) as Frame;
  switch (frame.kind) {
    case "event": // the type of the payload tells its members
      if (frame.payload.type === "text.delta") text += frame.payload.delta;
      if (frame.payload.type === "agent.end") ended = frame.payload.result.status;
      break;
    case "error":
      throw new Error(`${frame.code}: ${frame.message}`);
  }
}
if (text !== "STREAMED" || ended !== "completed") throw new Error(`the stream told ${text}, ${ended}`);
console.log("The generated TypeScript client ran an agent and followed its events.");
