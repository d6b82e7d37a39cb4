// Builds the page again and fails when the committed web/dist differs: nobody edits it, nobody
// forgets it.
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { extname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { READERS } from "./compress.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));

function files(dir) {
  return readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

function contents(dir) {
  return new Map(files(dir).map((file) => [relative(dir, file), (READERS[extname(file)] ?? ((it) => it))(readFileSync(file))]));
}

const fresh = join(here, "node_modules", ".fresh-dist");
rmSync(fresh, { recursive: true, force: true });
execFileSync("npm", ["run", "--silent", "build", "--", "--outDir", fresh, "--logLevel", "warn"], { cwd: here, stdio: "inherit" });
const committed = contents(join(here, "dist"));
const built = contents(fresh);
const differing = [...new Set([...committed.keys(), ...built.keys()])].filter((name) => {
  const a = committed.get(name);
  const b = built.get(name);
  return !a || !b || !a.equals(b);
});
if (built.size === 0) throw new Error("the build made no files");
if (differing.length > 0) {
  console.error(`web/dist is out of date: ${differing.join(", ")}. Run \`npm run build\` and commit it.`);
  process.exit(1);
}
console.log(`web/dist is what the sources build: ${built.size} files`);
