// The limits of one patient in a form, each beside the built-in one. The form writes the same
// document as the command line: a set that extends the built-in rules by those that differ.
import { labelOf, styleOf } from "../clinical";
import type { Document } from "../gen/braid/alerts/v1/alerts_pb";
import { Metric } from "../gen/braid/vitals/v1/vitals_pb";
import { t, term } from "../text";
import type { Change, Field } from "./change";
import type { Context } from "./context";
import { put, shown } from "./documents";

interface Rule {
  readonly id: string;
  readonly priority: string;
  readonly condition: { readonly kind: string; readonly metric?: string; readonly limit?: number; readonly clear?: number };
}

interface RuleSet {
  readonly name: string;
  readonly version: number;
  readonly extends?: string;
  readonly rules: readonly Rule[];
}

const PRIORITIES: Record<string, string> = { high: term("High priority"), medium: term("Medium priority"), low: term("Low priority") };
const METRICS = new Map([Metric.HEART_RATE, Metric.RESPIRATION_RATE, Metric.SPO2, Metric.SYSTOLIC_PRESSURE, Metric.DIASTOLIC_PRESSURE, Metric.TEMPERATURE].map((metric) => [styleOf(metric).key, metric]));

// A limit is a rule about one vital with one bound.
const isLimit = ({ condition: { kind, metric, limit } }: Rule): boolean => (kind === "above" || kind === "below") && limit !== undefined && METRICS.has(metric ?? "");

function fieldOf(built: Rule, own: Rule | undefined): Field {
  const { kind, metric, limit = 0, clear = 0 } = built.condition;
  const of = METRICS.get(metric ?? "") ?? Metric.UNSPECIFIED;
  const unit = t(styleOf(of).unit);
  const side = kind === "above" ? t("{metric} at or above", { metric: labelOf(of) }) : t("{metric} at or below", { metric: labelOf(of) });
  return {
    name: built.id,
    label: `${side} (${t(PRIORITIES[built.priority] ?? "")})`,
    value: own?.condition.limit === undefined ? "" : String(own.condition.limit),
    hint: t("Built-in: {limit} {unit}, ends at {clear}", { limit, unit, clear }),
  };
}

// withLimit moves a rule to a limit. The distance at which its alert ends stays.
function withLimit(built: Rule, text: string): Rule {
  const limit = Number(text.replace(",", "."));
  if (!Number.isFinite(limit)) throw new Error(t("“{text}” is no number.", { text }));
  const { limit: before = 0, clear = 0 } = built.condition;
  const moved = Math.round((limit + clear - before) * 1000) / 1000;
  return { ...built, condition: { ...built.condition, limit, clear: moved } };
}

// limitsOf is the change of a patient's limits. `newest` is the patient's set, if there is one.
export async function limitsOf(context: Context, patient: string): Promise<Change> {
  const { guarded, query, model } = context;
  const subject = `patient:${patient}`;
  const [builtIn, own] = await Promise.all([guarded(query.listDocuments({ kind: "rules", subject: "built-in" })), guarded(query.listDocuments({ kind: "rules", subject }))]);
  const newest: Document | undefined = own.documents[0];
  const built = (JSON.parse(builtIn.documents[0]?.body ?? '{"rules":[]}') as RuleSet).rules.filter(isLimit);
  const set = newest && newest.body !== "" ? (JSON.parse(newest.body) as RuleSet) : undefined;
  if (set && set.extends !== "built-in") throw new Error(t("The patient's set does not extend the built-in rules. Change its document."));
  const rules = set?.rules ?? [];
  const ownOf = (id: string) => rules.find((rule) => rule.id === id);
  const bodyOf = (values: Readonly<Record<string, string>>): string => {
    const wanted = built.filter(({ id }) => (values[id] ?? "") !== "");
    const kept = rules.filter((rule) => !built.some(({ id }) => id === rule.id));
    // A rule of the patient keeps what else the patient's set says of it.
    const changed = wanted.map((rule) => {
      const before = ownOf(rule.id);
      const text = values[rule.id] ?? "";
      return before && isLimit(before) ? (String(before.condition.limit) === text ? before : withLimit(before, text)) : withLimit(rule, text);
    });
    const next: RuleSet = { name: set?.name ?? patient, version: (set?.version ?? 0) + 1, extends: "built-in", rules: [...kept, ...changed] };
    const isSame = set !== undefined && JSON.stringify(next.rules) === JSON.stringify(rules);
    return next.rules.length === 0 ? "" : JSON.stringify(isSame ? set : next);
  };
  return {
    title: t("Limits of {patient}", { patient: model.labelOf(patient) }),
    verb: t("Put in force"),
    fields: built.map((rule) => fieldOf(rule, ownOf(rule.id))),
    async check(values, reason) {
      const preview = await shown(context, "rules", subject, newest, bodyOf(values), reason);
      const words = built.flatMap((rule) => {
        const field = fieldOf(rule, ownOf(rule.id));
        const said = (text: string) => (text === "" ? t("built-in, {limit}", { limit: rule.condition.limit ?? 0 }) : text);
        const [before, after] = [said(field.value ?? ""), said(values[rule.id] ?? "")];
        return before === after ? [] : t("{label}: {before} → {after}", { label: field.label, before, after });
      });
      return { ...preview, lines: [...words, ...preview.lines] };
    },
    write: async (values, reason) => void (await put(context, "rules", subject, newest, bodyOf(values), reason, false)),
  };
}
