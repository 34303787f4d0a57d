// A document, or why it is not there.
import { parse } from "./address.js";
import { Missing, Refused } from "./source.js";
import { Short } from "./text.js";

/** The command that shows a path which a file left out: `root` is the run's directory where it is known. */
const command = (path, root) => {
  const run = path.startsWith("run/") ? parse(`#/${path.split("/")[1]}`).run : "";
  return `midstream view ${root || run}`.trim();
};

export function Problem({ error, root }) {
  if (error instanceof Missing) {
    return (
      <div class="notice">
        <h1 tabindex="-1">Not in this file</h1>
        <p>The file holds a part of the run. This command shows all of it:</p>
        <pre>{command(error.path, root)}</pre>
      </div>
    );
  }
  const denied = error instanceof Refused && (error.status === 401 || error.status === 403);
  return (
    <div class="notice bad" role="alert">
      <h1 tabindex="-1">{denied ? "The server refused this address" : error instanceof Refused && error.status === 404 ? "Not found" : "This could not be loaded"}</h1>
      <Words error={error} />
      {denied && <p>Take the address that `midstream view` printed: its token is part of it.</p>}
    </div>
  );
}

/** What happened, why, and what fixes it. */
export const Words = ({ error, before = "" }) => (
  <>
    <p><Short text={before + error.message} limit={600} /></p>
    {error.cause && <p>Cause: <Short text={error.cause} limit={600} /></p>}
    {error.fix && <p>Fix: <Short text={error.fix} limit={600} /></p>}
  </>
);

/** `children(doc)` once the document is there; a failed later load is shown above what was there before. */
export function Shown({ state, children, root }) {
  const { doc, error } = state;
  if (doc === undefined && error) return <Problem error={error} root={root} />;
  if (doc === undefined) return <p class="loading" aria-busy="true">Loading</p>;
  return (
    <>
      {error && <Problem error={error} root={root} />}
      {children(doc)}
    </>
  );
}
