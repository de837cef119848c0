// What the browser tests let a page do. Every function answers with JSON.

const protocol = "svc.protocol.v1";

// note keeps the text of an event's frame. A note.gate asks the agent to go on.
function note(frames, text) {
  frames.push(text);
  if (JSON.parse(text).type === "note.gate") fetch("/more", {method: "POST"});
}

// overWebSocket reads a subject until its run has ended. Whenever it is cut off it comes back with a new ticket and its
// cursor.
async function overWebSocket(url, subject) {
  const frames = [], closes = [];
  for (let ended = false, since; !ended;) {
    const {ticket} = await (await fetch("/ticket", {method: "POST"})).json();
    const socket = new WebSocket(url, [protocol, "ticket." + ticket]);
    await new Promise((resolve, reject) => {
      const send = (id, method, params) => socket.send(JSON.stringify({v: "1", jsonrpc: "2.0", id, method, params}));
      let subscription;
      socket.onopen = () => send("hello", "initialize", {clientInfo: {name: "page", version: "1"}});
      socket.onmessage = ({data}) => {
        const frame = JSON.parse(data);
        if (frame.id === "hello" && frame.result) {
          send("watch", "subscription.subscribe", {subject, sinceEventId: since});
        } else if (frame.id === "watch" && frame.result) {
          subscription = frame.result.subscriptionId;
        } else if (!subscription || frame.subscriptionId !== subscription) {
          reject(new Error("a frame that nobody asked for: " + data));
        } else if (frame.kind === "event") {
          since = frame.eventId;
          note(frames, data);
        } else if (frame.kind === "lifecycle") {
          ended = true;
          socket.close(1000, "enough");
        } else if (frame.kind !== "subscribed") {
          reject(new Error("an unexpected frame: " + data));
        }
      };
      socket.onclose = ({code, wasClean}) => {
        console.log(`closed with ${code}, clean: ${wasClean}, after ${frames.length} events`);
        closes.push(`${code} ${wasClean}`);
        resolve();
      };
    });
  }
  return {frames, closes};
}

// overEventSource reads a run until it has ended. The browser itself comes back when it is cut off.
async function overEventSource(path, types) {
  const frames = [];
  let cuts = 0;
  const source = new EventSource(path);
  try {
    await new Promise((resolve, reject) => {
      for (const type of types) {
        source.addEventListener(type, ({data, lastEventId}) => {
          const {eventId} = JSON.parse(data);
          if (lastEventId !== eventId) reject(new Error(`the id is ${lastEventId} and the frame ${data}`));
          note(frames, data);
        });
      }
      source.addEventListener("replay-marker", ({data}) => reject(new Error("the cursor was lost: " + data)));
      source.addEventListener("lifecycle", resolve);
      source.onerror = ({data}) => {
        console.log(`cut off after ${frames.length} events; state ${source.readyState}`);
        cuts++;
        if (data || source.readyState === EventSource.CLOSED) reject(new Error("the browser gave up: " + data));
      };
    });
  } finally {
    source.close();
  }
  return {frames, cuts};
}

// upgrade opens a WebSocket and tells how it ended. An open one is closed, unless the server is expected to.
function upgrade(url, protocols, wait) {
  return new Promise(resolve => {
    const socket = new WebSocket(url, protocols);
    let opened = false;
    socket.onopen = () => {
      opened = true;
      if (!wait) socket.close(1000);
    };
    socket.onclose = ({code, reason, wasClean}) => resolve({opened, code, reason, wasClean});
  });
}

// request tells what the page sees of an answer.
async function request(url, options) {
  try {
    const answer = await fetch(url, options);
    return `${answer.type} ${answer.status} ${await answer.text()}`.trim();
  } catch (e) {
    return e.name;
  }
}

// submit posts a form into a frame, which no policy of browsers holds back.
function submit(url, sandbox) {
  return new Promise(resolve => {
    const frame = document.createElement("iframe");
    if (sandbox) frame.sandbox = "allow-scripts allow-forms";
    frame.srcdoc = `<form method="post" enctype="text/plain" action="${url}"><input name='{"input":"' value='"}'></form>
      <script>onload = () => setTimeout(() => document.forms[0].submit())</script>`;
    let loads = 0;
    frame.onload = () => ++loads === 2 && resolve(); // of the form, and of the answer
    document.body.append(frame);
  });
}

// listen tells how an EventSource of another origin fares.
function listen(url) {
  return new Promise(resolve => {
    const source = new EventSource(url);
    source.onopen = () => { source.close(); resolve("open"); };
    source.onerror = () => resolve(source.readyState === EventSource.CLOSED ? "refused" : "retrying");
  });
}
