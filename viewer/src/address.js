// The hash is the whole state of what is shown: `parse` reads it, `address` writes it, `go` follows it.

// A name may hold half of a surrogate pair, which encodeURIComponent refuses: it is written as the three bytes that
// Python's "surrogatepass" gives.
const HALF_WRITTEN = /%ed%([ab][0-9a-f])%([89ab][0-9a-f])/gi;

/** A name as a piece of a path. */
export function encode(name) {
  const bytes = (code) => `%ED%${(0x80 | ((code >> 6) & 0x3f)).toString(16)}%${(0x80 | (code & 0x3f)).toString(16)}`.toUpperCase();
  const parts = String(name).split(/([\ud800-\udfff])/u);
  return parts.map((part, index) => (index % 2 ? bytes(part.charCodeAt(0)) : encodeURIComponent(part))).join("");
}

function decode(text) {
  const parts = text.split(HALF_WRITTEN);
  let name = "";
  try {
    for (let index = 0; index < parts.length; index += 3) {
      name += decodeURIComponent(parts[index]);
      if (index + 2 < parts.length) {
        const [high, low] = [parseInt(parts[index + 1], 16), parseInt(parts[index + 2], 16)];
        name += String.fromCharCode(0xd000 | ((high & 0x3f) << 6) | (low & 0x3f));
      }
    }
    return name;
  } catch {
    return text; // a "%" that was typed
  }
}

/**
 * {page, run, part, task, rollout, turn, token, a, b, query} of a hash; rollout may be "@PLACE" (see trajectory.js).
 * "?compare=A,B" compares two runs. So did "compare/A/B", which may also be a task of a run that is called "compare".
 */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const names = path.split("/").filter(Boolean).map(decode);
  const query = Object.fromEntries(new URLSearchParams(search));
  const pair = names.length ? [] : (query.compare ?? "").split(",").map(decode);
  if (pair.length === 2) return { page: "compare", a: pair[0], b: pair[1], query };
  if (names[0] === "compare" && names.length === 3 && !/^(step|eval|unfinished)-/.test(names[1])) {
    return { page: "compare", a: names[1], b: names[2], query: { compare: pairOf(names.slice(1)) } };
  }
  const [run, part, task, rollout, turn, token] = names;
  const page = ["runs", "run", "list", "group", "trajectory", "trajectory", "tokens"][Math.min(names.length, 6)];
  return { page, run, part, task, rollout, turn, token, query };
}

const pairOf = (runs) => runs.map(encode).join(",");

/** The hash of a comparison of two runs. */
export const comparison = (runs) => address([], { compare: pairOf(runs) });

/** The hash of names in order, each of which may hold any character, and of a query whose empty values are left out. */
export function address(names, query = {}) {
  const search = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined),
  ).toString().replaceAll("%2C", ",");
  return `#/${names.map(encode).join("/")}${search ? `?${search}` : ""}`;
}

/** The names in the path of what `parse` gave. */
export function namesOf(at) {
  return [at.run, at.part, at.task, at.rollout, at.turn, at.token].filter((name) => name !== undefined);
}

/** Follow an address; `replace` leaves the history as long as it is, for what changes while typing or moving. */
export function go(hash, { replace = false } = {}) {
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(history.state, "", hash);
    dispatchEvent(new Event("midstream:address"));
  } else location.hash = hash;
}

/** Change the query of the present address: filters, the sort, a section. */
export function setQuery(changes, options = { replace: true }) {
  const at = parse(location.hash);
  go(address(namesOf(at), { ...at.query, ...changes }), options);
}
