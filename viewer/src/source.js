// Where documents come from: inside this file, or from the live server.

import { encode } from "./address.js";

const documents = new Map(); // of a file: path -> document
const listeners = new Set();
let mode = "live";

/** "live" or "file". Votes and news are there only live. */
export const isLive = () => mode === "live";

export class Missing extends Error {
  constructor(path) {
    super("not in this file");
    this.path = path;
  }
}

export class Refused extends Error {
  constructor(status, what, cause, fix) {
    super(what);
    Object.assign(this, { status, cause, fix });
  }
}

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function keep(base64) {
  for (const [path, document] of Object.entries(await unpack(base64))) documents.set(path, document);
}

/** Find out which of the two this page is; resolves when documents can be asked for. */
export async function openSource() {
  const inline = document.getElementById("data");
  if (inline) {
    mode = "file";
    await keep(inline.textContent);
  } else listen();
}

async function readAnswer(response) {
  const text = await response.text();
  let value = null;
  try {
    value = JSON.parse(text);
  } catch {
    value = null; // the server or something before it answered with text
  }
  if (response.ok && value !== null) return value;
  const { what, cause, fix } = value ?? {};
  throw new Refused(response.status, what || `the server answered ${response.status}`, cause, fix);
}

/** The document at `path`; live, `query` asks for a part of it. Raises `Missing` or `Refused`. */
export async function get(path, query = {}) {
  if (!isLive()) {
    if (!documents.has(path)) throw new Missing(path);
    return documents.get(path);
  }
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  const tail = search.size ? `?${search}` : "";
  return readAnswer(await fetch(`api/${path}${tail}`, { headers: { Accept: "application/json" } }));
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json", "X-Midstream": "view" };
  return readAnswer(await fetch(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** Keep a vote, a note, or a yes or no to a change that waits. */
export const vote = (run, body) => post(`${paths.run(run)}/feedback`, body);

/** Keep which of two answers is better; resolves to the next question. */
export const choose = (a, b, body) => post(paths.choices(a, b), body);

// --- news of the live server ------------------------------------------------------------------------------------------

/** `hear({runs})` after each change, `hear({connected})` when the connection is lost or there again. */
export function listenTo(hear) {
  listeners.add(hear);
  return () => listeners.delete(hear);
}

const report = (news) => [...listeners].forEach((hear) => hear(news));

function listen() {
  // EventSource reconnects by itself; after an error that it takes for final it is made again.
  const events = new EventSource("api/events");
  // What was loaded before the connection stood may have changed since: null stands for any run.
  events.onopen = () => report({ connected: true, runs: null });
  events.onerror = () => {
    report({ connected: false });
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  };
  events.addEventListener("change", (event) => {
    try {
      report({ runs: JSON.parse(event.data).runs });
    } catch {
      report({ runs: null });
    }
  });
}

// --- paths ------------------------------------------------------------------------------------------------------------

export const paths = {
  runs: () => "runs",
  run: (run) => `run/${encode(run)}`,
  compare: (a, b) => `compare/${encode(a)}/${encode(b)}`,
  choices: (a, b) => `${paths.compare(a, b)}/choices`,
  part: (run, part) => `run/${encode(run)}/part/${encode(part)}`,
  failures: (run, part) => `${paths.part(run, part)}/failures`,
  group: (run, part, task) => `${paths.part(run, part)}/group/${encode(task)}`,
  trajectory: (run, part, place) => `${paths.part(run, part)}/trajectory/${encode(place)}`,
  call: (run, part, place, n) => `${paths.trajectory(run, part, place)}/call/${encode(n)}`,
  tokens: (run, part, place, n) => `${paths.call(run, part, place, n)}/tokens`,
};
