// Builds the page of `midstream view` into src/midstream/view/static/: the same sources give the same bytes.
import { copyFileSync, mkdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "../src/midstream/view/static"));

// The notice of each bundled library stands at the top of the file that holds it.
const notices = ["preact", "uplot"].map((name) => {
  const at = join(here, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(at, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(at, "LICENSE"), "utf8").replace(/\r\n/g, "\n").trim()}`;
});

mkdirSync(target, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { view: "src/main.js" },
  outdir: target,
  bundle: true,
  minify: true,
  format: "iife", // a module does not load from file://
  target: ["chrome123", "firefox120", "safari17.5"], // the first with light-dark() in CSS
  charset: "utf8",
  legalComments: "none",
  loader: { ".js": "jsx" },
  jsx: "automatic",
  jsxImportSource: "preact",
  define: { "process.env.NODE_ENV": '"production"' },
  banner: { js: `/*! The page of midstream, with these libraries:\n\n${notices.join("\n\n")}\n*/` },
});
copyFileSync(join(here, "src/index.html"), join(target, "index.html"));
