//! The text of the report.

use std::fmt::Write;

use super::machine;
use crate::exhibit::{Exhibit, Finished, Section, Table};
use crate::figures::{Figure, Goal};
use crate::options::ReportOptions;
use crate::plot::csv_field;
use crate::references::{self, Comparison};

const STYLE: &str = include_str!("style.css");

fn escape(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// Title of a section, and the short name of its paper.
fn heading(section: Section) -> (&'static str, &'static str) {
    match section {
        Section::Pals => ("1. Portable assisted living", "pals"),
        Section::Lte => ("2. Multipath QUIC over LTE drives", "lte"),
        Section::Keepalive => ("3. Keepalive and selection of the access", "keepalive"),
        Section::Fluid => ("4. Fluid model of a convoy", "fluid"),
        Section::Applications => ("5. Latency-sensitive applications", "applications"),
        Section::Yardstick => ("6. The closest open project", "mqvpn"),
        Section::Steering => ("7. Steering rules", "an experiment of this project"),
        Section::Given => ("A scenario of the user", "its own file"),
    }
}

pub(crate) fn document(options: &ReportOptions, finished: &[Finished]) -> String {
    let mut body = String::new();
    let sections: Vec<Section> = Section::ALL
        .into_iter()
        .filter(|section| finished.iter().any(|entry| entry.section == *section))
        .collect();
    header(&mut body, options, finished, &sections);
    body += "<main>\n";
    for section in sections {
        let (title, paper) = heading(section);
        let _ = writeln!(body, "<h2 id=\"{}\">{}</h2>", section.name(), escape(title));
        let source = references::title(paper).unwrap_or(paper);
        let _ = writeln!(body, "<p class=\"quiet\">{}</p>", escape(source));
        for entry in finished.iter().filter(|entry| entry.section == section) {
            exhibit(&mut body, entry.id, &entry.exhibit);
        }
    }
    body += "</main>\n";
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Braid lab report</title>\n<style>\n{STYLE}</style></head>\n\
         <body>\n{body}</body></html>\n"
    )
}

fn header(body: &mut String, options: &ReportOptions, finished: &[Finished], sections: &[Section]) {
    *body += "<header><h1>Braid lab report</h1>\n";
    let extent = if options.quick {
        "quick: few runs of each experiment"
    } else {
        "all runs"
    };
    let only = options
        .only
        .as_ref()
        .map(|only| format!(", only {only}"))
        .unwrap_or_default();
    let _ = writeln!(
        body,
        "<p>Experiments of the papers named below and of the closest open project, repeated with \
         Braid's transport. Version {}, seed {}, {extent}{}. Machine: {}.</p>",
        env!("CARGO_PKG_VERSION"),
        options.seed,
        escape(&only),
        escape(&machine::describe()),
    );
    *body += "<p>Virtual time: the transport's state machines over simulated links on a simulated \
              clock; a seed gives the same run on every machine. Kernel time: real sockets in \
              network namespaces through an emulator of the same links. References come from \
              one data file, each with table or figure of its paper. Bytes are those of IP \
              packets of at most 1500 bytes. Efficiency is delivered bytes by the capacity of \
              the links that were up, from the first packet of the handshake to the last byte, \
              where not stated otherwise.</p>\n";
    *body += "<table><caption>Targets</caption><tr><th>section</th><th class=\"number\">met</th>\
              <th class=\"number\">missed</th><th class=\"number\">shown only</th></tr>\n";
    for section in sections {
        let own = finished.iter().filter(|entry| entry.section == *section);
        let rows: Vec<&Figure> = own.flat_map(|entry| &entry.exhibit.figures).collect();
        let missed = rows.iter().filter(|row| !row.met).count();
        let shown = rows.iter().filter(|row| row.goal == Goal::Shown).count();
        let met = rows.len() - missed - shown;
        let class = if missed > 0 {
            "number missed"
        } else {
            "number"
        };
        let _ = writeln!(
            body,
            "<tr><td><a href=\"#{}\">{}</a></td><td class=\"number\">{met}</td>\
             <td class=\"{class}\">{missed}</td><td class=\"number\">{shown}</td></tr>",
            section.name(),
            escape(heading(*section).0),
        );
    }
    let absent = Section::ALL
        .iter()
        .filter(|section| !sections.contains(section));
    for section in absent.filter(|section| **section != Section::Given) {
        let title = escape(heading(*section).0);
        let _ = writeln!(
            body,
            "<tr><td>{title}</td><td colspan=\"3\" class=\"quiet\">not in this report</td></tr>"
        );
    }
    *body += "</table>\n</header>\n<nav><ul>\n";
    for entry in finished {
        let title = escape(&entry.exhibit.title);
        let _ = writeln!(body, "<li><a href=\"#{}\">{title}</a></li>", entry.id);
    }
    *body += "</ul></nav>\n";
}

fn exhibit(body: &mut String, id: &str, exhibit: &Exhibit) {
    let _ = writeln!(body, "<h3 id=\"{id}\">{}</h3>", escape(&exhibit.title));
    for note in &exhibit.notes {
        let _ = writeln!(body, "<p>{}</p>", escape(note));
    }
    for reason in &exhibit.skipped {
        let _ = writeln!(body, "<p class=\"skipped\">Skipped: {}</p>", escape(reason));
    }
    if !exhibit.figures.is_empty() {
        figures(body, &exhibit.figures);
    }
    for (number, table) in (1..).zip(&exhibit.tables) {
        text_table(body, table, &format!("tables/{id}.{number}.csv"));
    }
    if !exhibit.plots.is_empty() {
        *body += "<div class=\"charts\">\n";
        for chart in &exhibit.plots {
            let source = references::chart(&chart.id).unwrap_or_default();
            let source = escape(&source);
            let _ = writeln!(
                body,
                "<figure id=\"{id}\">{svg}<figcaption>{id}: {source}. Data: \
                 <a href=\"charts/{id}.csv\">CSV</a>, <a href=\"charts/{id}.json\">JSON</a>, \
                 <a href=\"charts/{id}.svg\">SVG</a></figcaption></figure>",
                id = chart.id,
                svg = chart.svg,
            );
        }
        *body += "</div>\n";
    }
    if let Some(fragment) = &exhibit.fragment {
        *body += fragment;
    }
    let command = escape(&exhibit.command);
    let _ = writeln!(
        body,
        "<p class=\"quiet\">Repeated by <code>{command}</code></p>"
    );
}

fn figures(body: &mut String, rows: &[Figure]) {
    *body += "<div class=\"wide\"><table><tr><th>figure</th><th class=\"number\">reference</th>\
              <th>where</th><th class=\"number\">target</th><th class=\"number\">ours</th>\
              <th>unit</th><th></th></tr>\n";
    for row in rows {
        let source = match references::comparison(&row.id) {
            Comparison::Reference(reference) => {
                format!("{}, {}", reference.paper, reference.place)
            }
            Comparison::NoReference(reason) => reason,
            Comparison::Missing => "no entry in references.toml".to_owned(),
        };
        let reference = row.reference.map_or_else(|| "-".to_owned(), number);
        let target = match (row.goal, row.target) {
            (Goal::AtLeast, Some(target)) => format!("≥ {}", number(target)),
            (Goal::AtMost, Some(target)) => format!("≤ {}", number(target)),
            (Goal::Within, Some(target)) => format!("≈ {}", number(target)),
            _ => "-".to_owned(),
        };
        let (class, verdict) = match (row.goal, row.met) {
            (Goal::Shown, _) => ("", ""),
            (_, true) => ("met", "met"),
            (_, false) => ("missed", "missed"),
        };
        let _ = writeln!(
            body,
            "<tr><td><code>{}</code></td><td class=\"number\">{reference}</td>\
             <td class=\"text\">{}</td><td class=\"number\">{target}</td>\
             <td class=\"number\">{}</td><td>{}</td><td class=\"{class}\">{verdict}</td></tr>",
            escape(&row.id),
            escape(&source),
            number(row.measured),
            escape(&row.unit),
        );
    }
    *body += "</table></div>\n";
}

fn text_table(body: &mut String, table: &Table, file: &str) {
    let _ = writeln!(
        body,
        "<div class=\"wide\"><table><caption>{} (<a href=\"{file}\">CSV</a>)</caption><tr>",
        escape(&table.title)
    );
    let is_number =
        |text: &str| text.starts_with(|first: char| first.is_ascii_digit() || "-+".contains(first));
    let class = |column: usize| {
        let mut cells = table.rows.iter().filter_map(|row| row.get(column));
        if column > 0 && cells.all(|cell| cell.is_empty() || is_number(cell)) {
            " class=\"number\""
        } else {
            ""
        }
    };
    for (column, name) in table.columns.iter().enumerate() {
        let _ = write!(body, "<th{}>{}</th>", class(column), escape(name));
    }
    *body += "</tr>\n";
    for row in &table.rows {
        *body += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(body, "<td{}>{}</td>", class(column), escape(cell));
        }
        *body += "</tr>\n";
    }
    *body += "</table></div>\n";
}

/// A table as CSV.
pub(crate) fn table_csv(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| csv_field(cell)).collect();
        cells.join(",") + "\n"
    };
    let rows: String = table.rows.iter().map(|row| line(row)).collect();
    line(&table.columns) + &rows
}

fn number(value: f64) -> String {
    if !value.is_finite() {
        "never".to_owned()
    } else if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() < 0.1 && value != 0.0 {
        format!("{value:.4}")
    } else {
        format!("{value:.2}")
    }
}
