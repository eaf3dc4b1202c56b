// Builds the pages: src and style into dist, with hashed names and a manifest. It is not a dev server; `--watch` only builds again.
//
// dist/manifest.json: {"files": {"chat.js": "chat-XXXX.js", …}, "preload": […]}, read by server/pages.py.
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, context } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, "dist");
const ENTRIES = [
  { in: "src/main.tsx", out: "chat" },
  { in: "style/hamdam.css", out: "hamdam" },
  { in: "style/icon.svg", out: "icon" },
];
const FIRST_LOAD = 120 * 1024; // bytes of scripts and styles after gzip, fonts not counted; what may be loaded before the chat works

/** What must be there before the chat works: the entries and all that they import statically. */
function firstLoad(outputs) {
  const seen = new Set();
  const visit = (path) => {
    if (seen.has(path)) return;
    seen.add(path);
    for (const { path: next, kind } of outputs[path]?.imports ?? []) if (kind === "import-statement") visit(next);
  };
  for (const [path, { entryPoint }] of Object.entries(outputs)) if (ENTRIES.some((entry) => entry.in === entryPoint)) visit(path);
  return [...seen];
}

const manifest = {
  name: "manifest",
  setup(builder) {
    builder.onStart(() => rmSync(dist, { recursive: true, force: true }));
    builder.onEnd(({ metafile, errors }) => {
      if (errors.length) return;
      const files = {};
      const entries = new Set(ENTRIES.map(({ out }) => out));
      for (const path of Object.keys(metafile.outputs)) {
        const file = basename(path);
        const plain = file.replace(/-[A-Z0-9]{8}(?=\.)/, "");
        if (entries.has(plain.replace(/\.\w+$/, "")) || plain.endsWith(".woff2")) files[plain] = file;
      }
      const loaded = firstLoad(metafile.outputs);
      const size = loaded.reduce((sum, path) => sum + gzipSync(readFileSync(join(here, path))).length, 0);
      if (size > FIRST_LOAD) throw new Error(`the first load is ${size} bytes after gzip, more than ${FIRST_LOAD}`);
      const preload = loaded.map((path) => basename(path)).filter((file) => file.endsWith(".js") && file !== files["chat.js"]);
      writeFileSync(join(dist, "manifest.json"), JSON.stringify({ files, preload }, null, 1));
      console.log(`first load ${(size / 1024).toFixed(1)} KB gzip in ${loaded.length} files`);
    });
  },
};

const options = {
  absWorkingDir: here,
  entryPoints: ENTRIES,
  outdir: "dist",
  bundle: true,
  format: "esm",
  splitting: true,
  minify: true,
  metafile: true,
  target: ["es2022", "chrome123", "firefox125", "safari17.5"], // light-dark() and popover
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  loader: { ".woff2": "file", ".svg": "copy" },
  legalComments: "linked",
  logLevel: "warning",
  plugins: [manifest],
};

if (process.argv.includes("--watch")) await (await context(options)).watch();
else await build(options);
