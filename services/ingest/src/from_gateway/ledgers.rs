//! A gateway's account of its journal, and what it is asked for again.

use clocks::{GatewayClock, Taken};
use contracts::vitals::{Gap, GapCause, Ledger, LedgerStream, SequenceRange};
use store::Asked;
use tonic::Status;
use vitals::validate_identifier;

use super::Shared;
use crate::{
    admission::GatewayId, answers::Pending, judging::At, register::unknown, to_bus::Records,
};

/// Streams of one account, as many as a gateway's journal has; an account of more is refused.
const STREAMS_MAX: usize = 4096;
/// The store's integers are signed.
const SEQUENCE_MAX: u64 = i64::MAX as u64;

impl Shared {
    /// Keeps the account, and asks for what proofs have found missing.
    pub(super) async fn admit_ledger(
        &self,
        gateway: &GatewayId,
        mut ledger: Ledger,
        at: At,
        bulk: &mut Records,
        pending: &mut Pending,
    ) -> Result<(), Status> {
        let count = ledger.streams.len();
        if count > STREAMS_MAX {
            return Err(Status::invalid_argument(format!(
                "{count} streams in one account are more than {STREAMS_MAX}"
            )));
        }
        ledger.at_us = at_us(&ledger, at.arrival.now_us, at.clock);
        (
            ledger.at_uptime_us,
            ledger.at_boot,
            ledger.gateway_behind_us,
        ) = (0, 0, None);
        ledger.gateway.clone_from(&gateway.id);
        // A gateway speaks for no device but those that the register gives it, so that invented
        // names fill no table.
        let mut streams = Vec::with_capacity(count);
        for stream in std::mem::take(&mut ledger.streams) {
            let device = self.judging.device_of(&stream.device, gateway).await?;
            let mut worn = device.intervals(gateway).iter();
            if is_well_formed(&stream) && worn.any(|it| it.gateway == gateway.id) {
                streams.push(stream);
            }
        }
        ledger.streams = streams;
        bulk.entry(gateway.id.clone())
            .or_default()
            .ledgers
            .push(ledger);
        metrics::counter!("braid_ingest_ledgers_total").increment(1);
        let asked = self.asked(gateway, at).await?;
        metrics::counter!("braid_ingest_asked_again_total").increment(asked.len() as u64);
        pending.missing = asked.into_iter().map(range).collect();
        Ok(())
    }

    async fn asked(&self, gateway: &GatewayId, at: At) -> Result<Vec<Asked>, Status> {
        let asked = self
            .judging
            .register()
            .asked_again(gateway, at.arrival.now_us);
        asked.await.map_err(unknown)
    }

    /// A gateway does not know when samples were measured that it no longer has. The core knows
    /// between which others they lie. A gap that nobody asked for is left out.
    pub(super) async fn date_not_kept(
        &self,
        gateway: &GatewayId,
        mut gaps: Vec<Gap>,
        at: At,
    ) -> Result<Vec<Gap>, Status> {
        let is_not_kept = |gap: &Gap| gap.cause() == GapCause::NotKept;
        if !gaps.iter().any(is_not_kept) {
            return Ok(gaps);
        }
        let asked = self.asked(gateway, at).await?;
        gaps.retain_mut(|gap| {
            let of = asked.iter().find(|it| {
                (&it.device, &it.stream) == (&gap.device, &gap.stream)
                    && (it.first..=it.last).contains(&gap.first_sequence)
                    && gap.last_sequence <= it.last
            });
            if let Some(of) = of {
                (gap.from_time_us, gap.to_time_us) = (of.from_us, of.to_us);
            }
            of.is_some() || gap.cause() != GapCause::NotKept
        });
        Ok(gaps)
    }
}

/// The latest time up to which the account is certainly whole, by the core's clock.
fn at_us(ledger: &Ledger, now_us: i64, clock: Option<GatewayClock>) -> i64 {
    let taken = Taken {
        wall_us: ledger.at_us,
        uptime_us: ledger.at_uptime_us,
        boot: ledger.at_boot,
        behind_us: ledger.gateway_behind_us,
    };
    let right_us = clock.map_or(ledger.at_us, |clock| {
        let right_us = clock.error_at(taken).put_right_us(ledger.at_us);
        right_us.saturating_sub(clock.doubt_us(taken))
    });
    right_us.min(now_us)
}

fn is_well_formed(stream: &LedgerStream) -> bool {
    validate_identifier("stream", &stream.stream, "heart-rate").is_ok()
        && stream.first_sequence <= stream.next_sequence
        && stream.next_sequence <= SEQUENCE_MAX
}

fn range(asked: Asked) -> SequenceRange {
    SequenceRange {
        device: asked.device,
        stream: asked.stream,
        first_sequence: asked.first,
        last_sequence: asked.last,
    }
}
