//! The IO shell of `sender`: one task per class of data, beside those of its links to ingest.

use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::{EdgeAlert, Sample, UploadResponse};
use prost::Message;
use service_kit::{CheckHandle, Shutdown};
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tracing::Instrument;
use tunnel::{CopyNumber, TunnelEvent, Urgency};

use super::{
    accounts::{self, Accounts},
    batches::{Cuts, read, upload_request},
    dead_letters::DeadLetters,
    jitter::Jitter,
    link::{Link, LinkEvent},
    options::Options,
    overtaking,
    race::Race,
    readiness::{Readiness, Unreadable},
    sender::{BATCH_ENTRIES_MAX, Command, Event, Generation, Sender},
    trims::Trims,
};
use crate::{
    clock::{Clock, CoreClock},
    from_ingest::Follower,
    journal::{Chunk, Disk, Entry, Journal},
    revocation::Revocation,
    to_proxy::Uplink,
};

/// Events of links that the courier has not read. Beyond it their tasks wait.
const EVENTS_MAX: usize = 64;
/// Damaged segments that are skipped at once. More follow with the next entry.
const DAMAGES_MAX: usize = 4;
/// Number of the original among its copies.
const ORIGINAL: u8 = 0;
/// Time that a drain waits for acknowledgements. The rest stays in the journal.
const FLUSH_LIMIT: Duration = Duration::from_millis(1500);
/// A path's death within this time after its silence is the same event.
const SILENT_TO_DOWN_MAX: Duration = Duration::from_secs(3);

pub struct Courier<D> {
    pub options: Options,
    pub journal: Journal<D>,
    pub uplink: Arc<dyn Uplink>,
    /// Address of ingest.
    pub url: String,
    pub dead_letters: Arc<DeadLetters>,
    /// Ok while a link to ingest is up.
    pub check: CheckHandle,
    /// The clock that stamps samples.
    pub clock: Clock,
    pub core: Arc<CoreClock>,
    pub revocation: Revocation,
    /// Follows the core's rules over the same links.
    pub rules: Option<Follower>,
    /// Whether an alert of high priority is open. Uploads are then redundant.
    pub alarmed: watch::Receiver<bool>,
    /// How long entries wait for further ones, where the core says it.
    pub freshness: watch::Receiver<Option<Duration>>,
    /// Notified of alerts, so that their readings are uploaded at once.
    pub urgent: Arc<Notify>,
}

/// A courier at work: the sender, its links and their batches.
struct UnderWay<'a, D> {
    courier: &'a Courier<D>,
    sender: Sender,
    links: Vec<Link>,
    /// The links report by it to the courier.
    events: mpsc::Sender<LinkEvent>,
    cuts: Cuts,
    race: Race,
    trims: Trims,
    jitter: Jitter,
    readiness: Readiness,
    /// Only of the journal of vitals.
    accounts: Accounts,
}

impl<D: Disk> UnderWay<'_, D> {
    fn on_event(&mut self, event: Event) {
        self.sender.on_event(Instant::now(), event);
    }

    /// Obeys the sender until it has no command for now.
    async fn obey(&mut self) {
        while let Some(command) = self.sender.poll(Instant::now()) {
            match command {
                Command::Open(generation) => {
                    let link = self.courier.open(generation, self.events.clone());
                    self.links.push(link);
                }
                Command::Close(generation) => self.links.retain(|link| {
                    if link.generation == generation {
                        link.end();
                    }
                    link.generation != generation
                }),
                Command::Trim(position) => self.trims.note(Instant::now(), position),
                Command::Send { generation, from } => {
                    let sent = self.courier.send(self.link(generation), from).await;
                    self.readiness.unread = sent.as_ref().err().map(Unreadable::to_string);
                    let Ok(end) = sent else {
                        self.on_event(Event::Unread);
                        if self.courier.options.urgency == Urgency::Urgent {
                            let reader = self.courier.journal.reader();
                            overtaking::pass_by(&mut self.links, reader, from);
                        }
                        break;
                    };
                    self.cuts.note(generation, from, end);
                    self.race.on_original(generation, end);
                    self.on_event(Event::Sent { generation, end });
                    if end == from {
                        break;
                    }
                }
                Command::Copy {
                    generation,
                    number,
                    from,
                    until,
                } => {
                    let link = self.link(generation);
                    let end = self.courier.copy(link, number, (from, until)).await;
                    self.cuts.note(generation, from, end);
                    self.race.on_copy(end);
                    self.on_event(Event::Sent { generation, end });
                }
            }
        }
        if let Some(position) = self.trims.take(Instant::now())
            && !self.courier.journal.acknowledge(position)
        {
            self.trims.note(Instant::now(), position);
        }
        let behind_us = accounts::behind_us(&self.courier.core, self.courier.clock);
        let (journal, clock) = (&self.courier.journal, self.courier.clock);
        self.accounts.send(&self.links, journal, clock, behind_us);
        self.readiness.is_up = self.sender.is_up();
        self.readiness.show(&self.courier.check);
    }

    fn link(&self, generation: Generation) -> Option<&Link> {
        self.links.iter().find(|link| link.generation == generation)
    }

    async fn on_link_event(&mut self, event: LinkEvent) {
        let event = match event {
            LinkEvent::Up(generation) => Event::Up(generation),
            LinkEvent::Lost(generation, reason) => {
                self.accounts.on_lost(generation);
                let class = self.courier.options.class;
                tracing::info!(class, reason, "link to ingest lost");
                Event::Lost(generation, self.jitter.next())
            }
            LinkEvent::Answer(generation, mut answer) => {
                if answer.takes_ledgers && self.courier.options.urgency != Urgency::Urgent {
                    self.accounts.on_up(generation);
                }
                if answer.position > self.sender.acknowledged() {
                    self.accounts.on_taken();
                }
                let missing = std::mem::take(&mut answer.missing);
                let link = self.links.iter().find(|link| link.generation == generation);
                let end = self.sender.acknowledged();
                self.accounts
                    .send_again(missing, link, &self.courier.journal, end);
                self.on_event(Event::Answered(generation, answer.position));
                let known = self.sender.acknowledged();
                let now = Instant::now();
                for won in self.race.on_answer(now, generation, answer.position) {
                    self.courier.count_win(won);
                }
                self.courier
                    .on_answer(generation, answer, &self.cuts, known)
                    .await
            }
        };
        self.on_event(event);
    }

    async fn end(mut self) {
        for link in &self.links {
            link.end();
        }
        if let Some(position) = self.trims.rest() {
            // The entries are sent again after the restart if the journal cannot note it.
            self.courier.journal.acknowledge(position);
        }
    }
}

impl<D: Disk> Courier<D> {
    /// Sends until shutdown is requested, and then for up to FLUSH_LIMIT. `early`: alerts that the
    /// disk has not taken yet.
    pub async fn run(self, mut early: mpsc::Receiver<Vec<EdgeAlert>>, shutdown: Shutdown) {
        let (events, mut link_events) = mpsc::channel(EVENTS_MAX);
        let mut under_way = self.begin(events);
        let mut durable = self.journal.durable();
        let mut paths = self.uplink.events();
        let mut paths_open = true;
        let mut flush_until = None;
        let mut silent: Option<(String, Instant)> = None;
        let mut alarmed = self.alarmed.clone();
        alarmed.mark_changed();
        let mut freshness = self.freshness.clone();
        freshness.mark_changed();
        loop {
            under_way.obey().await;
            let sender = &under_way.sender;
            if flush_until.is_some_and(|until| sender.is_idle() || Instant::now() >= until) {
                break;
            }
            let deadlines = sender.deadline().into_iter().chain(flush_until);
            let beside = under_way.trims.due().into_iter();
            let beside = beside.chain(under_way.accounts.due());
            let deadline = deadlines.chain(beside).min();
            tokio::select! {
                () = shutdown.requested(), if flush_until.is_none() => {
                    flush_until = Some(Instant::now() + FLUSH_LIMIT);
                    under_way.on_event(Event::Hurry);
                }
                Some(alerts) = early.recv() => overtaking::send_early(&under_way.links, alerts),
                () = self.urgent.notified() => under_way.on_event(Event::Hurry),
                Some(event) = link_events.recv() => under_way.on_link_event(event).await,
                Ok(()) = durable.changed() => {
                    under_way.on_event(Event::Durable(*durable.borrow_and_update()));
                }
                Ok(()) = alarmed.changed() => {
                    under_way.on_event(Event::Redundant(*alarmed.borrow_and_update()));
                }
                Ok(()) = freshness.changed() => {
                    let own = self.options.limits.freshness;
                    let freshness = freshness.borrow_and_update().unwrap_or(own);
                    under_way.on_event(Event::Freshness(freshness));
                }
                event = paths.recv(), if paths_open => match event {
                    Err(broadcast::error::RecvError::Closed) => paths_open = false,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        under_way.on_event(Event::PathDown);
                    }
                    Ok(event) => if let Some(event) = self.harms_links(event, &mut silent) {
                        under_way.on_event(event);
                    },
                },
                () = sleep_until(deadline) => {}
            }
        }
        under_way.end().await;
    }

    fn begin(&self, events: mpsc::Sender<LinkEvent>) -> UnderWay<'_, D> {
        let reader = self.journal.reader();
        let (head, durable) = (reader.head(), reader.durable());
        let sender = Sender::new(Instant::now(), self.options.limits, head, durable);
        UnderWay {
            courier: self,
            trims: Trims::new(sender.acknowledged()),
            sender,
            links: Vec::new(),
            events,
            cuts: Cuts::default(),
            race: Race::default(),
            jitter: Jitter::new(),
            readiness: Readiness::default(),
            accounts: Accounts::default(),
        }
    }

    /// How an event of a path may stall its links. `silent`: the path that was silent last, and
    /// since when.
    fn harms_links(
        &self,
        event: TunnelEvent,
        silent: &mut Option<(String, Instant)>,
    ) -> Option<Event> {
        let class = self.options.class;
        match event {
            // The path carried nothing.
            TunnelEvent::PathDown { carried: false, .. } => None,
            // The link that took over when the path was silent never used it.
            TunnelEvent::PathDown { name, .. }
                if silent.as_ref().is_some_and(|(known, since)| {
                    *known == name && since.elapsed() < SILENT_TO_DOWN_MAX
                }) =>
            {
                None
            }
            TunnelEvent::PathDown { name, .. } => {
                tracing::info!(class, path = name, "path down: opening a fresh link");
                metrics::counter!("braid_gateway_links_reopened_total", "class" => class)
                    .increment(1);
                Some(Event::PathDown)
            }
            // The spare has nothing in flight there, so it takes over before the path is known to
            // be dead.
            TunnelEvent::PathSilent { name } => {
                tracing::debug!(class, path = name, "path silent: the spare takes over");
                *silent = Some((name, Instant::now()));
                Some(Event::PathSilent)
            }
            TunnelEvent::SessionDown { reason, .. } => {
                self.revocation.on_session_end(&reason);
                Some(Event::PathDown)
            }
            TunnelEvent::SessionUp { .. } | TunnelEvent::PathUp { .. } => None,
        }
    }

    fn open(&self, generation: Generation, events: mpsc::Sender<LinkEvent>) -> Link {
        let (copy, urgency) = (CopyNumber::default(), self.options.urgency);
        let channel = self.uplink.channel(&self.url, urgency, Some(&copy));
        Link::open(
            generation,
            self.options.limits.in_flight_max,
            (channel, copy),
            (self.clock, Arc::clone(&self.core), self.revocation.clone()),
            self.rules.clone(),
            events,
        )
    }

    /// Passes one batch to the link. Returns its end, or `from` if the link takes none.
    async fn send(&self, link: Option<&Link>, from: u64) -> Result<u64, Unreadable> {
        let Some(link) = link else {
            return Ok(from);
        };
        let chunk = self.read(from, BATCH_ENTRIES_MAX).await?;
        let end = chunk.next;
        let request = upload_request(chunk);
        link.copy.set(ORIGINAL);
        let span = tracing::info_span!("upload", class = self.options.class);
        if let Some(sample) = request
            .samples
            .iter()
            .find(|sample| !sample.traceparent.is_empty())
        {
            service_kit::telemetry::continue_trace(&span, &sample.traceparent);
        }
        let (samples, alerts) = (request.samples.len(), request.alerts.len());
        if link.requests.send(request).instrument(span).await.is_err() {
            // The link is lost, and its event will follow.
            return Ok(from);
        }
        metrics::counter!("braid_gateway_uploaded_samples_total").increment(samples as u64);
        metrics::counter!("braid_gateway_uploaded_alerts_total").increment(alerts as u64);
        Ok(end)
    }

    /// Passes a copy to the link without waiting. A full link is stuck on a dead path.
    async fn copy(&self, link: Option<&Link>, number: u8, (from, until): (u64, u64)) -> u64 {
        let Some(link) = link else {
            return from;
        };
        let entries = usize::try_from(until - from).unwrap_or(usize::MAX);
        let Ok(chunk) = self.read(from, entries.min(BATCH_ENTRIES_MAX)).await else {
            return from;
        };
        let end = chunk.next;
        let request = upload_request(chunk);
        let bytes = request.encoded_len() as u64;
        link.copy.set(number);
        if link.requests.try_send(request).is_err() {
            return from;
        }
        let class = self.options.class;
        metrics::counter!("braid_gateway_copies_total", "class" => class).increment(1);
        metrics::counter!("braid_gateway_redundant_bytes_total", "class" => class).increment(bytes);
        end
    }

    /// A copy was acknowledged before its original, by this time.
    fn count_win(&self, won: Duration) {
        let class = self.options.class;
        metrics::counter!("braid_gateway_redundant_wins_total", "class" => class).increment(1);
        metrics::counter!("braid_gateway_redundant_won_milliseconds_total", "class" => class)
            .increment(won.as_millis() as u64);
    }

    async fn read(&self, from: u64, entries_max: usize) -> Result<Chunk, Unreadable> {
        let class = self.options.class;
        let mut unreadable = Unreadable::Nothing;
        for _ in 0..DAMAGES_MAX {
            match read(self.journal.reader(), from, entries_max).await {
                // The writer had dropped the entries, or they are there.
                Ok(chunk) if chunk.next > from => return Ok(chunk),
                Ok(_) => break,
                Err(error) => {
                    tracing::error!(class, %error, "the journal cannot be read");
                    let is_damaged = error.kind() == ErrorKind::InvalidData;
                    unreadable = Unreadable::Failed(error);
                    if !is_damaged {
                        break;
                    }
                    self.journal.give_up(from).await;
                }
            }
        }
        metrics::counter!("braid_gateway_journal_unread_total", "class" => class).increment(1);
        Err(unreadable)
    }

    /// `known`: an earlier answer has named the refused samples up to here.
    async fn on_answer(
        &self,
        generation: Generation,
        answer: UploadResponse,
        cuts: &Cuts,
        known: u64,
    ) -> Event {
        if !answer.rejections.is_empty()
            && answer.position > known
            && let Err(error) = self.bury(generation, &answer, cuts, known).await
        {
            // The samples are lost for people, but the core refused them anyway.
            tracing::error!(%error, "refused samples cannot be written to the dead-letter file");
        }
        Event::Acknowledged(answer.position)
    }

    /// Rejections name samples by their index in the request of this link that ends at the answer's
    /// position. The journal still has the samples.
    async fn bury(
        &self,
        generation: Generation,
        answer: &UploadResponse,
        cuts: &Cuts,
        known: u64,
    ) -> std::io::Result<()> {
        let samples: Vec<(u64, Sample)> = match cuts.start_of(generation, answer.position) {
            Some(from) => {
                let entries = usize::try_from(answer.position - from).unwrap_or(usize::MAX);
                let chunk = read(self.journal.reader(), from, entries).await?;
                let samples = chunk.entries.into_iter().filter_map(|entry| match entry {
                    (position, Entry::Sample(sample)) => Some((position, sample)),
                    _ => None,
                });
                samples.collect()
            }
            None => Vec::new(),
        };
        let refused: Vec<(Sample, String)> = answer
            .rejections
            .iter()
            .filter_map(|rejection| {
                let (position, sample) = samples.get(rejection.index as usize)?;
                (*position >= known).then(|| (sample.clone(), rejection.reason.clone()))
            })
            .collect();
        let refused_count = if samples.is_empty() {
            answer.rejections.len()
        } else {
            refused.len()
        };
        metrics::counter!("braid_gateway_samples_dead_total").increment(refused_count as u64);
        for (sample, reason) in refused.iter().take(3) {
            tracing::warn!(
                device = sample.device,
                stream = sample.stream,
                sequence = sample.sequence,
                reason,
                "ingest refused a sample"
            );
        }
        let dead_letters = Arc::clone(&self.dead_letters);
        tokio::task::spawn_blocking(move || dead_letters.put(&refused, contracts::now_us()))
            .await
            .map_err(std::io::Error::other)?
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
