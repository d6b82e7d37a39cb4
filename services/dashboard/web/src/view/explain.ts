// Asks why a flow of a gateway takes which accesses.
import { h, setText } from "../dom";
import type { ExplainSteeringResponse } from "../gen/braid/query/v1/query_pb";
import type { Model } from "../model";
import { t } from "../text";

const DESTINATION_LENGTH_MAX = 262;
const NAME_LENGTH_MAX = 80;

export interface Asked {
  readonly gateway: string;
  readonly destination: string;
  readonly application: string;
  readonly urgency: string;
  readonly protocol: string;
}

export interface SteeringActions {
  explain(asked: Asked): Promise<ExplainSteeringResponse>;
}

export function explainView(model: Model, actions: SteeringActions): { element: HTMLElement; draw(): void } {
  const gateway = h("input", { type: "text", required: true, maxlength: NAME_LENGTH_MAX, "aria-label": t("Gateway"), placeholder: t("Gateway"), spellcheck: "false" });
  const destination = h("input", { type: "text", required: true, maxlength: DESTINATION_LENGTH_MAX, "aria-label": t("Destination"), placeholder: "deb.example.org:443", spellcheck: "false" });
  const application = h("input", { type: "text", maxlength: NAME_LENGTH_MAX, "aria-label": t("Application"), placeholder: "applications", list: "applications", spellcheck: "false" });
  const known = h("datalist", { id: "applications" }, ...["applications", "applications-prompt", "tun", "vitals", "alerts"].map((name) => h("option", { value: name })));
  const choose = (label: string, values: readonly string[]) => h("select", { "aria-label": label }, ...values.map((value) => h("option", { value }, value)));
  const urgency = choose(t("Urgency"), ["bulk", "prompt", "alert"]);
  const protocol = choose(t("Protocol"), ["tcp", "udp", "ip"]);
  const confirm = h("button", { type: "submit" }, t("Explain"));
  const failure = h("p", { class: "message", role: "alert" });
  const answer = h("pre", { class: "explained", tabindex: "0", role: "status", "aria-label": t("Explanation") });
  answer.hidden = true;
  let followed = "";
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        confirm.disabled = true;
        setText(failure, "");
        answer.hidden = true;
        actions
          .explain({ gateway: gateway.value.trim(), destination: destination.value.trim(), application: application.value.trim(), urgency: urgency.value, protocol: protocol.value })
          .then(({ text }) => {
            setText(answer, text.trimEnd());
            answer.hidden = false;
          })
          .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : t("It was not explained.")))
          .finally(() => (confirm.disabled = false));
      },
    },
    gateway,
    destination,
    application,
    known,
    urgency,
    protocol,
    confirm,
    failure,
    answer,
  );
  // The gateway of the selected patient, unless a person has written another one.
  const draw = () => {
    const next = model.patient()?.gateway ?? [...model.paths.values()][0]?.gateway ?? "";
    if (gateway.value !== followed || document.activeElement === gateway) return;
    followed = next;
    gateway.value = next;
  };
  return { element: h("section", { class: "panel explain", "aria-label": t("Explain which accesses a flow takes") }, h("header", {}, h("h2", {}, t("Explain which accesses a flow takes"))), form), draw };
}
