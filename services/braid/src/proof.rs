//! `braid proof`: whether everything that gateways took in for a patient is stored. With an exit
//! status for scripts, and as a signed file.

mod signed_file;

use std::path::PathBuf;
use std::process::ExitCode;

use contracts::query::{Proof, ProofGap, ProofState, StreamProof};
use serde_json::{Value, json};
use store::Scope;
use store::completeness::{RANGE_US_MAX, prove, says};

use crate::audit::Asker;
use crate::moment::{Moment, shown};
use crate::process::{self, Failure, say};
use crate::tenancy::Tenancy;

/// Exit status if samples are missing.
const EXIT_INCOMPLETE: u8 = 3;
/// Exit status if evidence is missing.
const EXIT_NOT_PROVEN: u8 = 4;
const HOUR_US: i64 = 3_600_000_000;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "The exit status is 0 if the range is complete, 3 if samples are missing, and\n4 if evidence is missing: silence proves nothing.\n\nExamples:\n  braid proof --patient ada --from 2026-03-01T12:00:00Z \\\n      --to 2026-03-01T13:00:00Z\n  braid proof --patient ada --json\n  braid proof --patient ada --from 2026-03-01T00:00:00Z \\\n      --to 2026-03-02T00:00:00Z --out ada-1-march.proof\n  braid proof verify ada-1-march.proof --key proof.pub"
)]
pub struct ProofCommand {
    #[command(subcommand)]
    verify: Option<Verify>,
    /// The patient.
    #[arg(long, value_name = "ID", required = true)]
    patient: Option<String>,
    /// Begin of the range, by device time. Absent: an hour before its end.
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,
    /// End of the range, exclusive, at most 31 days later. Absent: now.
    #[arg(long, value_name = "TIME")]
    to: Option<Moment>,
    /// Print JSON.
    #[arg(long, default_value_t = false)]
    json: bool,
    /// Write the proof to this file, signed.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Key that signs; made on first use, with the public key beside it as .pub.
    #[arg(
        long,
        value_name = "FILE",
        env = "BRAID_PROOF_KEY",
        default_value = "./data/identities/proof.key"
    )]
    key: PathBuf,
    #[command(flatten)]
    asker: Asker,
    #[command(flatten)]
    tenancy: Tenancy,
}

#[derive(Debug, clap::Subcommand)]
enum Verify {
    /// Check that a proof's file is as it was signed, and print the proof.
    #[command(after_help = "Example:\n  braid proof verify ada-1-march.proof --key proof.pub")]
    Verify {
        /// The signed file.
        file: PathBuf,
        /// Public key of the installation.
        #[arg(
            long,
            value_name = "FILE",
            default_value = "./data/identities/proof.pub"
        )]
        key: PathBuf,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
    },
}

impl ProofCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if let Some(Verify::Verify { file, key, json }) = &self.verify {
            let proof = signed_file::read(file, key)?;
            return shows(&proof, *json);
        }
        process::block_on(self.prove())?
    }

    async fn prove(self) -> Result<ExitCode, Failure> {
        let patient = self.patient.unwrap_or_default();
        let now_us = contracts::now_us();
        let to_us = self.to.map_or(now_us, |it| it.0);
        let from_us = self.from.map_or(to_us - HOUR_US, |it| it.0);
        if !(1..=RANGE_US_MAX).contains(&to_us.saturating_sub(from_us)) {
            return Err(Failure::other(
                "--from must be before --to, by at most 31 days; for example --from 2026-03-01T12:00:00Z --to 2026-03-01T13:00:00Z",
            ));
        }
        let store = self.tenancy.store.open().await?;
        let tenant = &self.tenancy.tenant;
        let detail = format!(" from {} to {}", shown(from_us), shown(to_us));
        self.asker
            .reads(&*store, tenant, "read proof", &patient, detail)
            .await?;
        let range = (from_us, to_us);
        let proof = prove(&*store, &Scope::tenant(tenant), &patient, range, now_us).await;
        let Some(proof) = proof.map_err(Failure::other)? else {
            return Err(Failure::other(format!(
                "patient {patient:?} is not known in tenant {tenant:?}"
            )));
        };
        let proof = as_json(&proof);
        if let Some(out) = &self.out {
            signed_file::write(out, &self.key, &proof)?;
        }
        shows(&proof, self.json)
    }
}

fn shows(proof: &Value, as_json: bool) -> Result<ExitCode, Failure> {
    if as_json {
        process::json(proof)?;
    } else {
        for line in lines(proof) {
            say(&line)?;
        }
    }
    Ok(match proof["state"].as_str() {
        Some("complete") => ExitCode::SUCCESS,
        Some("incomplete") => ExitCode::from(EXIT_INCOMPLETE),
        _ => ExitCode::from(EXIT_NOT_PROVEN),
    })
}

/// One form for the terminal, scripts and the signed file.
fn as_json(proof: &Proof) -> Value {
    json!({
        "patient": proof.patient,
        "from": shown(proof.from_us),
        "to": shown(proof.to_us),
        "made": shown(proof.made_us),
        "state": state(proof.state()),
        "complete_until": shown(proof.complete_until_us),
        "because": proof.because,
        "streams": proof.streams.iter().map(stream_json).collect::<Vec<_>>(),
    })
}

fn stream_json(stream: &StreamProof) -> Value {
    json!({
        "device": stream.device,
        "stream": stream.stream,
        "gateways": stream.gateways,
        "state": state(stream.state()),
        "stored": stream.stored,
        "complete_until": shown(stream.complete_until_us),
        "known_until": shown(stream.known_until_us),
        "in_transit": stream.in_transit,
        "gaps": stream.gaps.iter().map(gap_json).collect::<Vec<_>>(),
        "gaps_omitted": stream.gaps_omitted,
        "because": stream.because,
    })
}

fn gap_json(gap: &ProofGap) -> Value {
    let name = gap.cause().as_str_name();
    json!({
        "cause": name.trim_start_matches("GAP_CAUSE_").to_lowercase().replace('_', "-"),
        "says": says(gap.cause()),
        "from": shown(gap.from_us),
        "to": shown(gap.to_us),
        "first": gap.first_sequence,
        "last": gap.last_sequence,
    })
}

fn state(state: ProofState) -> &'static str {
    match state {
        ProofState::Complete => "complete",
        ProofState::Incomplete => "incomplete",
        ProofState::NotProven | ProofState::Unspecified => "not-proven",
    }
}

fn lines(proof: &Value) -> Vec<String> {
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for stream in proof["streams"].as_array().into_iter().flatten() {
        lines.push(format!(
            "{}/{}  {}  {} stored  complete until {}",
            text(stream, "device"),
            text(stream, "stream"),
            text(stream, "state"),
            stream["stored"],
            text(stream, "complete_until"),
        ));
        for gap in stream["gaps"].as_array().into_iter().flatten() {
            let count = match (gap["first"].as_u64(), gap["last"].as_u64()) {
                (Some(first @ 1..), Some(last)) => format!("{} samples", last - first + 1),
                (_, _) => "unknown".to_owned(),
            };
            lines.push(format!(
                "  {}: {count} from {} to {}: {}",
                text(gap, "cause"),
                text(gap, "from"),
                text(gap, "to"),
                text(gap, "says"),
            ));
        }
        if let Some(omitted @ 1..) = stream["gaps_omitted"].as_u64() {
            lines.push(format!("  and {omitted} more gaps"));
        }
    }
    let because = text(proof, "because");
    let because = if because.is_empty() {
        because
    } else {
        format!(": {because}")
    };
    lines.push(format!(
        "{} from {} to {}: {}, complete until {}{because}",
        text(proof, "patient"),
        text(proof, "from"),
        text(proof, "to"),
        text(proof, "state"),
        text(proof, "complete_until"),
    ));
    lines
}
