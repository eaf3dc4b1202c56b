// Runs tests/web with node's own test runner. Not a test framework: esbuild only takes the types away, so that any node of ours will do.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const tests = join(here, "..", "tests", "web");
const built = join(here, "node_modules", ".tests"); // beside the packages, so that they are found from there
const wanted = process.argv.slice(2);
const names = readdirSync(tests).filter((name) => name.endsWith(".test.ts") && (!wanted.length || wanted.some((w) => name.includes(w))));

rmSync(built, { recursive: true, force: true });
await build({
  absWorkingDir: here,
  entryPoints: names.map((name) => join(tests, name)),
  outdir: built,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  packages: "external",
  format: "esm",
  platform: "node",
  target: "node20",
  jsx: "automatic",
  jsxImportSource: "preact",
  sourcemap: "inline",
  logLevel: "warning",
});
const files = names.map((name) => join(built, name.replace(/\.ts$/, ".mjs")));
process.exit(spawnSync(process.execPath, ["--enable-source-maps", "--test", "--test-reporter=spec", ...files], { stdio: "inherit" }).status ?? 1);
