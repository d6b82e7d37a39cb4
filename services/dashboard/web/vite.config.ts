import { defineConfig } from "vite";
import { compress } from "./compress.mjs";

// Names of built files carry a hash of their content: the server lets browsers keep them for ever.
export default defineConfig({
  base: "/",
  build: {
    outDir: "dist",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    sourcemap: false,
    reportCompressedSize: false,
  },
  plugins: [{ name: "compress", apply: "build", writeBundle: ({ dir = "dist" }) => compress(dir) }],
});
