//! Reports of `braid probe` as text, CSV or JSON.

use std::net::SocketAddr;

use super::prober::Row;
use super::responder::ClientRow;
use crate::process::CLEAR;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A screen that is drawn again for each report.
    Live,
    /// A line for each report.
    Lines,
    Csv,
    Json,
}

impl Format {
    pub(super) fn path_head(self) -> &'static str {
        match self {
            Self::Csv => {
                "at_s,sent,answered,rtt_ms,rtt_min_ms,rtt_max_ms,loss_up,loss_down,is_up,downs,k,\
                 t_ka_ms,advised_k,advised_t_ka_ms,loss_below\n"
            }
            _ => "",
        }
    }

    pub(super) fn path(self, to: SocketAddr, row: &Row) -> String {
        match self {
            Self::Live => format!("{CLEAR}{}", screen(to, row)),
            Self::Lines => line(row),
            Self::Csv => csv(row),
            Self::Json => json(row),
        }
    }

    pub(super) fn summary(self, to: SocketAddr, row: &Row) -> String {
        match self {
            Self::Live | Self::Lines => format!("\nAll together\n{}", screen(to, row)),
            // A row that sums others up has no place among them.
            Self::Csv => String::new(),
            Self::Json => match serde_json::to_value(row) {
                Ok(summary) => format!("{}\n", serde_json::json!({ "summary": summary })),
                Err(_) => String::new(),
            },
        }
    }

    pub(super) fn clients_head(self) -> &'static str {
        match self {
            Self::Csv => {
                "at_s,client,received,rtt_ms,loss_up,loss_down,loss_up_all,loss_down_all\n"
            }
            _ => "",
        }
    }

    pub(super) fn clients(self, at_s: f64, rows: &[ClientRow]) -> String {
        let lines = rows.iter().map(|row| match self {
            Self::Csv => format!(
                "{at_s:.3},{},{},{},{},{},{},{}\n",
                row.client,
                row.received,
                plain(row.rtt_ms),
                plain(row.loss_up),
                plain(row.loss_down),
                plain(row.loss_up_all),
                plain(row.loss_down_all)
            ),
            Self::Json => json(row),
            Self::Live | Self::Lines => format!(
                "{:<28} {:>8} probes  RTT {:>9}  loss up {:>7}, down {:>7}\n",
                row.client.to_string(),
                row.received,
                ms(row.rtt_ms),
                percent(row.loss_up),
                percent(row.loss_down)
            ),
        });
        let text: String = lines.collect();
        match (self, text.is_empty()) {
            (Self::Live, false) => format!("{CLEAR}{text}"),
            _ => text,
        }
    }
}

fn json<T: serde::Serialize>(row: &T) -> String {
    // Only numbers and text, which cannot fail.
    serde_json::to_string(row).map_or_else(|_| String::new(), |text| text + "\n")
}

fn csv(row: &Row) -> String {
    let (k, t_ka_ms) = row
        .advice
        .map_or((None, None), |it| (Some(it.k), Some(it.t_ka_ms)));
    format!(
        "{:.3},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
        row.at_s,
        row.sent,
        row.answered,
        plain(row.rtt_ms),
        plain(row.rtt_min_ms),
        plain(row.rtt_max_ms),
        plain(row.loss_up),
        plain(row.loss_down),
        u8::from(row.is_up),
        row.downs,
        row.k,
        row.t_ka_ms,
        k.map_or_else(String::new, |k| k.to_string()),
        plain(t_ka_ms),
        plain(row.no_loss.map(|it| it.below))
    )
}

fn line(row: &Row) -> String {
    format!(
        "{:>8.1} s  {}  RTT {} ({} to {})  loss up {}, down {}  {} of {} answered  {}\n",
        row.at_s,
        if row.is_up { "up  " } else { "down" },
        ms(row.rtt_ms),
        ms(row.rtt_min_ms),
        ms(row.rtt_max_ms),
        percent(row.loss_up),
        percent(row.loss_down),
        row.answered,
        row.sent,
        advised(row)
    )
}

fn screen(to: SocketAddr, row: &Row) -> String {
    format!(
        "{to}  {}, {} times down\n\
         RTT         {}, {} to {}\n\
         loss        {}\n\
         probes      {} of {} answered; K {}, T_KA {:.0} ms\n\
         optimiser   {}\n",
        if row.is_up { "up" } else { "down" },
        row.downs,
        ms(row.rtt_ms),
        ms(row.rtt_min_ms),
        ms(row.rtt_max_ms),
        lost(row),
        row.answered,
        row.sent,
        row.k,
        row.t_ka_ms,
        advised(row)
    )
}

/// No loss among few probes does not show that there is none.
fn lost(row: &Row) -> String {
    match row.no_loss {
        Some(none) => format!(
            "none in {} probes: below {} with 95 % confidence",
            none.probes,
            percent(Some(none.below))
        ),
        None => format!(
            "up {}, down {}",
            percent(row.loss_up),
            percent(row.loss_down)
        ),
    }
}

fn advised(row: &Row) -> String {
    match (row.advice, &row.no_advice) {
        (Some(advice), _) => format!("K {}, T_KA {:.0} ms", advice.k, advice.t_ka_ms),
        (None, Some(reason)) => reason.clone(),
        (None, None) => "no answer yet".to_owned(),
    }
}

fn plain(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.4}"))
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} ms"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.1} %", value * 100.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::prober::{Advice, NoLoss};
    use super::*;

    #[test]
    fn each_format_shows_the_same_row() {
        let row = Row {
            at_s: 2.0,
            sent: 10,
            answered: 9,
            rtt_ms: Some(20.125),
            rtt_min_ms: Some(19.5),
            rtt_max_ms: None,
            loss_up: Some(0.1),
            loss_down: None,
            no_loss: None,
            is_up: true,
            downs: 1,
            k: 5,
            t_ka_ms: 200.0,
            advice: Some(Advice {
                k: 7,
                t_ka_ms: 60.0,
            }),
            no_advice: None,
        };
        let to: SocketAddr = "192.0.2.7:7028".parse().unwrap();
        let csv = Format::Csv.path(to, &row);
        assert_eq!(
            csv,
            "2.000,10,9,20.1250,19.5000,,0.1000,,1,1,5,200,7,60.0000,\n"
        );
        assert_eq!(
            csv.split(',').count(),
            Format::Csv.path_head().split(',').count()
        );
        let json: serde_json::Value = serde_json::from_str(&Format::Json.path(to, &row)).unwrap();
        assert_eq!(
            (&json["loss_up"], &json["advice"]["k"]),
            (&0.1.into(), &7.into())
        );
        assert_eq!(
            Format::Lines.path(to, &row),
            "     2.0 s  up    RTT 20.12 ms (19.50 ms to -)  loss up 10.0 %, down -  \
             9 of 10 answered  K 7, T_KA 60 ms\n"
        );
        let live = Format::Live.path(to, &row);
        assert!(live.starts_with(CLEAR) && live.contains("optimiser   K 7, T_KA 60 ms"));
        assert!(live.contains("loss        up 10.0 %, down -\n"), "{live}");
        let none = Some(NoLoss {
            probes: 25,
            below: 0.113,
        });
        let live = Format::Live.path(
            to,
            &Row {
                no_loss: none,
                ..row
            },
        );
        let says = "loss        none in 25 probes: below 11.3 % with 95 % confidence\n";
        assert!(live.contains(says), "{live}");
    }
}
