// Numbers as people read them.

const NONE = "–";

/** `toFixed` as Python rounds: an exact tie, an odd number of halves in binary, goes to the even digit. */
export function fixed(value, digits = 0) {
  const tie = Math.abs(value * 2 ** (digits + 1)) % 2 === 1;
  const scale = 10 ** digits;
  return (tie ? (2 * Math.round((value * scale) / 2)) / scale : value).toFixed(digits);
}

export const integer = (value) => (value == null ? NONE : Number(fixed(value)).toLocaleString("en"));

export function number(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  if (Number.isInteger(value)) return value.toLocaleString("en").replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 100 ? fixed(value) : size >= 0.001 ? String(Number(fixed(value, 2 - Math.floor(Math.log10(size))))) : value.toExponential(1);
  return text.replace("-", "−");
}

export const percent = (value) => (value == null ? NONE : `${fixed(value * 100, 1)}%`);

export const signed = (value) => (value == null ? NONE : `${value > 1e-9 ? "+" : ""}${number(Math.abs(value) < 1e-9 ? 0 : value)}`);

export const dollars = (value) => (!value ? NONE : value < 0.01 ? `$${Number(value.toPrecision(2))}` : `$${fixed(value, 2)}`);

export function seconds(value) {
  if (value == null) return NONE;
  if (value < 1) return `${fixed(value * 1000)} ms`;
  if (value < 120) return `${number(value)} s`;
  return value < 7200 ? `${fixed(value / 60)} min` : `${fixed(value / 3600, 1)} h`;
}

export const counted = (count, noun, nouns = `${noun}s`) => `${integer(count)} ${count === 1 ? noun : nouns}`;

/** How long ago an ISO time was, in words; "" if it is no time. */
export function ago(time, now = Date.now()) {
  const at = Date.parse(time);
  if (Number.isNaN(at)) return "";
  const passed = Math.max(0, now - at) / 1000;
  if (passed < 60) return "now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  if (passed < 86400 * 14) return counted(Math.floor(passed / 86400), "day") + " ago";
  return new Date(at).toISOString().slice(0, 10);
}
