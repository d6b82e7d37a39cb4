// The findings of axe-core on a page.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

// findings are those of every rule in the dark theme, and of contrast in the light one.
export async function findings(of) {
  const found = async (options) =>
    of.evaluate(async (options) => {
      // Further rows of a list are like the first.
      const exclude = [".patient:nth-child(n + 25)", ".alert:nth-child(n + 10)", ".accesses > :nth-child(n + 8)", ".entries > :nth-child(n + 10)"];
      const { violations } = await window.axe.run({ include: document, exclude }, { resultTypes: ["violations"], ...options });
      return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html, any }) => `${html.slice(0, 120)} ${any[0]?.message ?? ""}`).join(" | ")}`);
    }, options);
  await of.evaluate(AXE);
  const dark = await found({});
  await of.emulateMedia({ colorScheme: "light" });
  const light = await found({ runOnly: ["color-contrast"] });
  await of.emulateMedia({ colorScheme: "dark" });
  return [...dark, ...light];
}
