// The texts of the page, as its sources have them.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const SOURCES = fileURLToPath(new URL("../src/", import.meta.url));
const STRING = String.raw`"((?:[^"\\]|\\.)*)"`;
const ONE = new RegExp(String.raw`\b(?:t|term)\(${STRING}`, "g");
const MANY = new RegExp(String.raw`\bmany\([^"]*?, ${STRING}, ${STRING}`, "g");

export function sources() {
  const files = readdirSync(SOURCES, { recursive: true }).filter((name) => name.endsWith(".ts") && !name.startsWith("gen"));
  return files.map((name) => [name, readFileSync(join(SOURCES, name), "utf8")]);
}

export function texts() {
  const found = new Set();
  for (const [, source] of sources()) {
    for (const [, text] of source.matchAll(ONE)) found.add(JSON.parse(`"${text}"`));
    for (const [, one, other] of source.matchAll(MANY)) found.add(JSON.parse(`"${one}|${other}"`));
  }
  return found;
}

export function translated(language) {
  return JSON.parse(readFileSync(join(SOURCES, "text", `${language}.json`), "utf8"));
}
