// The line that says until when the patient's data are complete.
import { nowUs } from "../clock";
import { completenessText } from "../completeness";
import { h, setAttribute, setText } from "../dom";
import { ProofState, type GetProofResponse } from "../gen/braid/query/v1/query_pb";
import type { Model } from "../model";

// The stretch that is compared: that of the longest trend.
const STRETCH_US = 14_400n * 1_000_000n;

type Ask = (patient: string, fromUs: bigint, toUs: bigint) => Promise<GetProofResponse>;

export function completenessView(model: Model, ask: Ask): { element: HTMLElement; load(): void } {
  const element = h("p", { class: "completeness dim" });
  element.hidden = true;
  let shown = "";
  const load = () => {
    const patient = model.selected;
    if (patient !== shown) element.hidden = true;
    shown = patient;
    if (patient === "") return;
    const toUs = nowUs();
    ask(patient, toUs - STRETCH_US, toUs).then(
      ({ proof }) => {
        if (model.selected !== patient) return;
        element.hidden = proof === undefined;
        setText(element, proof ? completenessText(proof) : "");
        setAttribute(element, "data-proof", proof ? ProofState[proof.state].toLowerCase() : false);
      },
      // An old answer must not stay beside newer readings.
      () => {
        element.hidden = true;
      },
    );
  };
  return { element, load };
}
