//! The outcome of a plan as text.

use crate::model::{HourOutcome, Outcome};

/// Hours in a row that are alike, by access.
pub fn spans(outcome: &Outcome) -> Vec<(&str, String, &HourOutcome)> {
    let is_like = |a: &HourOutcome, b: &HourOutcome| {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(1.0);
        near(a.usable_mbit, b.usable_mbit) && near(a.load_mbit, b.load_mbit)
    };
    let mut spans = Vec::new();
    for access in &outcome.accesses {
        for alike in access.hours.chunk_by(is_like) {
            if let [first, ..] = alike {
                let hours = format!("{:02}-{:02}", first.hour, first.hour + alike.len());
                spans.push((access.name.as_str(), hours, first));
            }
        }
    }
    spans
}

/// Tables for a terminal, with the warnings.
pub fn text(outcome: &Outcome) -> String {
    let money = &outcome.currency;
    let width = |names: Vec<&str>| names.iter().map(|it| it.chars().count()).max().unwrap_or(0);
    let wide = width(outcome.accesses.iter().map(|it| it.name.as_str()).collect()).max(7);
    let mut text = format!("{}\n\n", outcome.plan);
    text += &format!(
        "{:wide$}  {:>9}  {:>13}  {:>11}  {:>7}  {:>15}  {:>7}  {:>9}  {:>10}\n",
        "access",
        "patients",
        "usable Mbit/s",
        "busy Mbit/s",
        "used %",
        "headroom Mbit/s",
        "share %",
        "GB/month",
        format!("{money}/month"),
    );
    for it in &outcome.accesses {
        text += &format!(
            "{:wide$}  {:>9.1}  {:>13.2}  {:>11.3}  {:>7.2}  {:>15.2}  {:>7.2}  {:>9.1}  \
             {:>10.2}\n",
            it.name,
            it.patients,
            it.usable_mbit,
            it.busy_mbit,
            it.used_percent,
            it.headroom_mbit,
            it.share_percent,
            it.gb_per_month,
            it.price_per_month,
        );
    }
    text += &format!(
        "{:wide$}  {:>9}  {:>13}  {:>11}  {:>7}  {:>15}  {:>7}  {:>9.1}  {:>10.2}\n\n",
        "sum", "", "", "", "", "", "", outcome.gb_per_month, outcome.price_per_month
    );
    text += &format!(
        "{:wide$}  {:>5}  {:>13}  {:>13}  {:>11}  {:>7}  {:>18}\n",
        "access",
        "hours",
        "others Mbit/s",
        "usable Mbit/s",
        "load Mbit/s",
        "used %",
        "one gateway Mbit/s",
    );
    for (name, hours, it) in spans(outcome) {
        text += &format!(
            "{name:wide$}  {hours:>5}  {:>13.2}  {:>13.2}  {:>11.3}  {:>7.2}  {:>18.3}\n",
            it.background_mbit, it.usable_mbit, it.load_mbit, it.used_percent, it.gateway_mbit,
        );
    }
    text.push('\n');
    let wide = width(outcome.groups.iter().map(|it| it.name.as_str()).collect()).max(8);
    text += &format!(
        "{:wide$}  {:>8}  {:>11}  {:>12}  {:>11}  {:>18}  {:>12}  {:>17}  {:>18}\n",
        "patients",
        "count",
        "uncovered %",
        "one access %",
        "busy kbit/s",
        "equilibrium Mbit/s",
        "alone Mbit/s",
        "GB/patient, month",
        format!("{money}/patient, month"),
    );
    for it in &outcome.groups {
        text += &format!(
            "{:wide$}  {:>8.0}  {:>11.2}  {:>12.2}  {:>11.1}  {:>18.2}  {:>12.2}  {:>17.3}  \
             {:>18.2}\n",
            it.name,
            it.patients,
            it.uncovered_percent,
            it.single_percent,
            it.busy_kbit_per_patient,
            it.equilibrium_sum_mbit,
            it.alone_mbit,
            it.gb_per_patient_month,
            it.price_per_patient_month,
        );
    }
    for warning in &outcome.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}
