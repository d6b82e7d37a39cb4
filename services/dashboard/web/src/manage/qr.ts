// A QR code as a drawing with sharp edges at every size.
import { encode } from "uqr";

const SVG = "http://www.w3.org/2000/svg";
// Light modules around the code, which readers need (ISO/IEC 18004, 5.3.8).
const QUIET = 4;

export function qrCode(text: string, label: string): SVGElement {
  const { data, size } = encode(text, { ecc: "M", border: QUIET });
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
  svg.setAttribute("class", "qr");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.setAttribute("shape-rendering", "crispEdges");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", data.flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x} ${y}h1v1h-1z` : ""))).join(""));
  svg.append(path);
  return svg;
}
