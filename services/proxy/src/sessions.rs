//! The table of sessions by gateway: limits of each gateway, and the counters of their paths.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use service_kit::{path_table::PathRow, tls::GatewayId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tunnel::{PathSnapshot, PathState, SessionHandle, Urgency};

use crate::budget::{Budget, FULL_AFTER};

/// The part of a session that the table needs; a trait so that tests need no network.
pub(crate) trait Handle: Clone {
    fn close(&self, reason: &str);
    fn paths(&self) -> Vec<PathSnapshot>;
}

impl Handle for SessionHandle {
    fn close(&self, reason: &str) {
        SessionHandle::close(self, reason);
    }

    fn paths(&self) -> Vec<PathSnapshot> {
        SessionHandle::paths(self)
    }
}

/// Divisor of a gateway's tunnels: this part of them is not for bulk.
const KEPT_PART: usize = 8;

/// Divisor of a gateway's plain tunnels: this part of them is not for bulk. A gateway has up to
/// ten plain tunnels to ingest in each session, and those of a dead session remain for two
/// minutes.
const PLAIN_KEPT_PART: usize = 3;

/// Longest wait of a request beyond the rate of its gateway; then it is refused.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Requests of one gateway that wait for their turn; further ones are refused.
const WAITING_MAX: usize = 512;

/// Gateways remembered without a session, so that a new session gets no fresh request budget; at
/// the bound the gateway that left first is forgotten.
const RESTING_MAX: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} sessions are open, the largest permitted number")]
pub(crate) struct Full(usize);

struct Gateway<H> {
    /// By session number. Numbers rise, so the first session is the oldest.
    sessions: BTreeMap<u64, H>,
    /// Time at which the last session ended.
    left_at: Option<Instant>,
    quotas: Quotas,
}

/// Limits of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) sessions_max: usize,
    pub(crate) sessions_per_gateway_max: usize,
    pub(crate) tunnels_per_gateway_max: usize,
    /// Part of the tunnels.
    pub(crate) plain_per_gateway_max: usize,
    pub(crate) requests_per_second_max: u32,
}

struct State<H> {
    gateways: HashMap<GatewayId, Gateway<H>>,
    /// Gateways without a session in the order in which they left; some have come back since.
    resting: VecDeque<(Instant, GatewayId)>,
    count: usize,
}

impl<H> State<H> {
    /// Forgets gateways that left long ago, unless a tunnel of theirs is still open.
    fn forget_rested(&mut self, now: Instant, tunnels_max: usize) {
        while let Some((left_at, _)) = self.resting.front() {
            let is_over_bound = self.resting.len() > RESTING_MAX;
            if now.saturating_duration_since(*left_at) < FULL_AFTER && !is_over_bound {
                return;
            }
            let Some((left_at, id)) = self.resting.pop_front() else {
                return;
            };
            let resting = self.gateways.get_mut(&id);
            let Some(gateway) = resting.filter(|gateway| gateway.left_at == Some(left_at)) else {
                continue;
            };
            if gateway.quotas.tunnels.available_permits() < tunnels_max && !is_over_bound {
                gateway.left_at = Some(now);
                self.resting.push_back((now, id));
            } else {
                self.gateways.remove(&id);
            }
        }
    }
}

/// The table of sessions. An entry lives as long as its sessions, and for `FULL_AFTER` beyond them.
pub(crate) struct Sessions<H> {
    limits: Limits,
    state: Mutex<State<H>>,
}

impl<H: Handle> Sessions<H> {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::new(State {
                gateways: HashMap::new(),
                resting: VecDeque::new(),
                count: 0,
            }),
        })
    }

    /// Enters a session. A gateway at its bound loses its oldest session: after an outage of all
    /// networks the dead session times out later than the gateway returns.
    pub(crate) fn enter(
        self: &Arc<Self>,
        id: GatewayId,
        number: u64,
        handle: H,
    ) -> Result<Entered<H>, Full> {
        let state = &mut *self.state.lock();
        let limits = self.limits;
        state.forget_rested(Instant::now(), limits.tunnels_per_gateway_max);
        let has = state
            .gateways
            .get(&id)
            .map_or(0, |gateway| gateway.sessions.len());
        let evicts = has >= limits.sessions_per_gateway_max;
        if state.count >= limits.sessions_max && !evicts {
            return Err(Full(limits.sessions_max));
        }
        let gateway = state.gateways.entry(id.clone()).or_insert_with(|| Gateway {
            sessions: BTreeMap::new(),
            left_at: None,
            quotas: Quotas::new(limits),
        });
        if evicts && let Some((_, oldest)) = gateway.sessions.pop_first() {
            oldest.close("replaced by a newer session of the same gateway");
            state.count -= 1;
        }
        gateway.sessions.insert(number, handle);
        gateway.left_at = None;
        state.count += 1;
        metrics::gauge!("braid_proxy_sessions_open").set(state.count as f64);
        Ok(Entered {
            sessions: self.clone(),
            quotas: gateway.quotas.clone(),
            id,
            number,
        })
    }

    fn leave(&self, id: &GatewayId, number: u64) {
        let state = &mut *self.state.lock();
        let Some(gateway) = state.gateways.get_mut(id) else {
            return;
        };
        if gateway.sessions.remove(&number).is_some() {
            state.count -= 1;
        }
        if gateway.sessions.is_empty() {
            let now = Instant::now();
            gateway.left_at = Some(now);
            state.resting.push_back((now, id.clone()));
            state.forget_rested(now, self.limits.tunnels_per_gateway_max);
        }
        metrics::gauge!("braid_proxy_sessions_open").set(state.count as f64);
    }

    pub(crate) fn handles(&self) -> Vec<H> {
        let state = self.state.lock();
        state
            .gateways
            .values()
            .flat_map(|gateway| gateway.sessions.values().cloned())
            .collect()
    }

    /// The rows of `/paths`, of one gateway or of all.
    pub(crate) fn rows(&self, only: Option<&str>) -> Vec<PathRow> {
        let sessions = self.paths();
        let wanted = sessions
            .iter()
            .filter(|(gateway, _)| only.is_none_or(|only| only == gateway.id));
        let paths = wanted.flat_map(|(gateway, paths)| {
            let open = paths.iter().filter(|path| path.state != PathState::Closed);
            open.map(|path| path.row(&gateway.id))
        });
        paths.collect()
    }

    /// The paths of every session with the gateway they belong to.
    pub(crate) fn paths(&self) -> Vec<(GatewayId, Vec<PathSnapshot>)> {
        let handles: Vec<(GatewayId, H)> = {
            let state = self.state.lock();
            let each = state.gateways.iter().flat_map(|(id, gateway)| {
                let handles = gateway.sessions.values();
                handles.map(|handle| (id.clone(), handle.clone()))
            });
            each.collect()
        };
        handles
            .into_iter()
            .map(|(gateway, handle)| (gateway, handle.paths()))
            .collect()
    }
}

/// A session's place in the table; dropping it frees the place.
pub(crate) struct Entered<H: Handle> {
    sessions: Arc<Sessions<H>>,
    quotas: Quotas,
    id: GatewayId,
    number: u64,
}

impl<H: Handle> Entered<H> {
    /// The quotas of the session's gateway.
    pub(crate) fn quotas(&self) -> Quotas {
        self.quotas.clone()
    }

    pub(crate) fn gateway(&self) -> &GatewayId {
        &self.id
    }
}

/// Why a tunnel has no place now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The gateway asks too often; there is room after this time.
    Later(Duration),
    /// The gateway has all that this limit permits.
    Full(Limit),
}

/// The flag that sets a limit, for the log.
pub(crate) type Limit = &'static str;
const TUNNELS: Limit = "--tunnels-per-gateway-max";
const PLAIN_TUNNELS: Limit = "--plain-tunnels-per-gateway-max";
const REQUESTS: Limit = "--requests-per-second-max";

/// The quotas of one gateway, shared by all its sessions.
#[derive(Clone)]
pub(crate) struct Quotas {
    limits: Limits,
    tunnels: Arc<Semaphore>,
    plain: Arc<Semaphore>,
    requests: Arc<Mutex<Budget>>,
    /// Places of requests that wait for their turn: bulk, and all else.
    waiting: [Arc<Semaphore>; 2],
    /// Bulk requests wait in the order of their arrival.
    bulk_turn: Arc<tokio::sync::Mutex<()>>,
}

impl Quotas {
    fn new(limits: Limits) -> Self {
        let budget = Budget::new(limits.requests_per_second_max, Instant::now());
        Self {
            tunnels: Arc::new(Semaphore::new(limits.tunnels_per_gateway_max)),
            plain: Arc::new(Semaphore::new(limits.plain_per_gateway_max)),
            requests: Arc::new(Mutex::new(budget)),
            waiting: [(); 2].map(|()| Arc::new(Semaphore::new(WAITING_MAX))),
            bulk_turn: Arc::default(),
            limits,
        }
    }

    /// Waits for the turn of a request beyond the gateway's rate, at most [`WAIT_MAX`]. Fails if
    /// the time is over, if [`WAITING_MAX`] others wait, or if all places are taken.
    pub(crate) async fn turn(
        &self,
        urgency: Urgency,
        is_plain: bool,
    ) -> Result<TunnelPlace, Limit> {
        let is_bulk = urgency == Urgency::Bulk;
        let waiting = &self.waiting[usize::from(!is_bulk)];
        let _waiting = waiting.clone().try_acquire_owned().map_err(|_| REQUESTS)?;
        let waits = async {
            let _turn = match is_bulk {
                true => Some(self.bulk_turn.lock().await),
                false => None,
            };
            loop {
                let now = Instant::now();
                match self.tunnel(urgency, is_plain, now) {
                    Ok(place) => return Ok(place),
                    Err(NoPlace::Later(after)) => tokio::time::sleep(after).await,
                    Err(NoPlace::Full(limit)) => return Err(limit),
                }
            }
        };
        tokio::time::timeout(WAIT_MAX, waits)
            .await
            .unwrap_or(Err(REQUESTS))
    }

    /// A place for one more tunnel. Bulk leaves some places free; concurrent sessions may each take
    /// one of them.
    pub(crate) fn tunnel(
        &self,
        urgency: Urgency,
        is_plain: bool,
        now: Instant,
    ) -> Result<TunnelPlace, NoPlace> {
        let spent = self.requests.lock().spend(urgency, now);
        spent.map_err(NoPlace::Later)?;
        let limits = &self.limits;
        let kept = |max: usize, part: usize| match urgency {
            Urgency::Bulk => max / part,
            Urgency::Prompt | Urgency::Urgent => 0,
        };
        let plain = if is_plain {
            let kept = kept(limits.plain_per_gateway_max, PLAIN_KEPT_PART);
            Some(place(&self.plain, kept).ok_or(NoPlace::Full(PLAIN_TUNNELS))?)
        } else {
            None
        };
        let any = place(
            &self.tunnels,
            kept(limits.tunnels_per_gateway_max, KEPT_PART),
        )
        .ok_or(NoPlace::Full(TUNNELS))?;
        Ok(TunnelPlace {
            _any: any,
            _plain: plain,
        })
    }
}

/// The places of one tunnel; dropping it frees them.
#[derive(Debug)]
pub(crate) struct TunnelPlace {
    _any: OwnedSemaphorePermit,
    _plain: Option<OwnedSemaphorePermit>,
}

/// Returns `None` if no more than `kept` places are free.
fn place(places: &Arc<Semaphore>, kept: usize) -> Option<OwnedSemaphorePermit> {
    if places.available_permits() <= kept {
        return None;
    }
    places.clone().try_acquire_owned().ok()
}

impl<H: Handle> Drop for Entered<H> {
    fn drop(&mut self) {
        self.sessions.leave(&self.id, self.number);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Clone, Default)]
    struct Fake {
        closed: Arc<Mutex<bool>>,
    }

    impl Handle for Fake {
        fn close(&self, _: &str) {
            *self.closed.lock() = true;
        }

        fn paths(&self) -> Vec<PathSnapshot> {
            Vec::new()
        }
    }

    fn gateway(id: &str) -> GatewayId {
        GatewayId::new("acme", id)
    }

    fn table() -> Arc<Sessions<Fake>> {
        Sessions::new(Limits {
            sessions_max: 3,
            sessions_per_gateway_max: 2,
            tunnels_per_gateway_max: 1,
            plain_per_gateway_max: 1,
            requests_per_second_max: 1,
        })
    }

    #[test]
    fn a_gateway_loses_its_oldest_session() {
        let table = table();
        let fakes = [Fake::default(), Fake::default(), Fake::default()];
        let entered: Vec<_> = fakes
            .iter()
            .zip(1..)
            .map(|(fake, number)| table.enter(gateway("a"), number, fake.clone()).unwrap())
            .collect();
        assert_eq!(
            fakes.each_ref().map(|fake| *fake.closed.lock()),
            [true, false, false]
        );
        assert_eq!(table.handles().len(), 2);
        drop(entered);
        assert!(table.handles().is_empty());
        assert_eq!(table.state.lock().count, 0);
    }

    #[test]
    fn a_full_table_refuses_new_gateways() {
        let table = table();
        let a = table.enter(gateway("a"), 1, Fake::default()).unwrap();
        let _b = table.enter(gateway("b"), 2, Fake::default()).unwrap();
        let _c = table.enter(gateway("c"), 3, Fake::default()).unwrap();
        assert!(table.enter(gateway("d"), 4, Fake::default()).is_err());
        drop(a);
        assert!(table.enter(gateway("d"), 5, Fake::default()).is_ok());
    }

    #[test]
    fn tunnels_are_counted_per_gateway_not_per_session() {
        let table = table();
        let first = table.enter(gateway("a"), 1, Fake::default()).unwrap();
        let second = table.enter(gateway("a"), 2, Fake::default()).unwrap();
        let other = table.enter(gateway("b"), 3, Fake::default()).unwrap();
        let now = Instant::now();
        let permit = first.quotas.tunnel(Urgency::Prompt, false, now).unwrap();
        assert!(second.quotas.tunnel(Urgency::Prompt, false, now).is_err());
        assert!(other.quotas.tunnel(Urgency::Prompt, false, now).is_ok());
        drop(permit);
        assert!(second.quotas.tunnel(Urgency::Prompt, false, now).is_ok());
        // The burst of one request per second is four; three were made.
        assert!(first.quotas.tunnel(Urgency::Prompt, false, now).is_ok());
        assert!(second.quotas.tunnel(Urgency::Prompt, false, now).is_err());
        assert!(
            second
                .quotas
                .tunnel(Urgency::Prompt, false, now + Duration::from_secs(1))
                .is_ok()
        );
    }

    #[test]
    fn a_gateway_that_has_rested_is_forgotten_unless_tunnels_wait_for_it() {
        let table = table();
        let entered = table.enter(gateway("a"), 1, Fake::default()).unwrap();
        let now = Instant::now();
        let permit = entered.quotas.tunnel(Urgency::Prompt, false, now).unwrap();
        drop(entered);
        let again = table.enter(gateway("a"), 2, Fake::default()).unwrap();
        assert!(
            again.quotas.tunnel(Urgency::Prompt, false, now).is_err(),
            "has its full number"
        );
        drop(again);
        let rested = |times: u32| {
            let at = now + FULL_AFTER * 2 * times;
            table.state.lock().forget_rested(at, 1);
            table.state.lock().gateways.is_empty()
        };
        assert!(!rested(1));
        drop(permit);
        assert!(rested(2));
        assert!(table.state.lock().resting.is_empty());
    }

    #[test]
    fn bulk_leaves_places_for_urgent_tunnels() {
        let table = Sessions::new(Limits {
            sessions_max: 1,
            sessions_per_gateway_max: 1,
            tunnels_per_gateway_max: 16,
            plain_per_gateway_max: 16,
            requests_per_second_max: 100,
        });
        let entered = table.enter(gateway("a"), 1, Fake::default()).unwrap();
        let now = Instant::now();
        let take = |urgency| {
            std::iter::from_fn(|| entered.quotas.tunnel(urgency, false, now).ok())
                .collect::<Vec<_>>()
        };
        let bulk = take(Urgency::Bulk);
        let urgent = take(Urgency::Urgent);
        assert_eq!((bulk.len(), urgent.len()), (14, 2));
    }

    #[test]
    fn plain_tunnels_have_a_bound_of_their_own_over_all_sessions() {
        let table = Sessions::new(Limits {
            sessions_max: 3,
            sessions_per_gateway_max: 2,
            tunnels_per_gateway_max: 64,
            plain_per_gateway_max: 6,
            requests_per_second_max: 100,
        });
        let sessions = [1, 2].map(|n| table.enter(gateway("a"), n, Fake::default()).unwrap());
        let now = Instant::now();
        let all_of = |urgency| -> Vec<_> {
            let asked = sessions.iter().cycle().take(40);
            asked
                .filter_map(|it| it.quotas.tunnel(urgency, true, now).ok())
                .collect()
        };
        let bulk = all_of(Urgency::Bulk);
        assert_eq!(bulk.len(), 4, "two are left to what is urgent");
        let urgent = all_of(Urgency::Urgent);
        assert_eq!(urgent.len(), 2);
        // Resumable tunnels have their own bound, and plain tunnels took no place of it.
        assert!(sessions[0].quotas.tunnel(Urgency::Bulk, false, now).is_ok());
        drop(bulk);
        assert!(sessions[1].quotas.tunnel(Urgency::Bulk, true, now).is_ok());
    }

    /// Requests beyond the rate wait for their turn; alerts wait behind no bulk.
    #[tokio::test]
    async fn requests_beyond_the_rate_wait_for_their_turn() {
        let quotas = Quotas::new(Limits {
            sessions_max: 1,
            sessions_per_gateway_max: 1,
            tunnels_per_gateway_max: 4_096,
            plain_per_gateway_max: 1,
            requests_per_second_max: 1_000,
        });
        let now = Instant::now();
        let spent = std::iter::from_fn(|| quotas.tunnel(Urgency::Bulk, false, now).ok());
        let spent: Vec<_> = spent.take(4_096).collect();
        assert!(spent.len() >= 3_000, "{}", spent.len());
        // The reserve of urgent requests is spent as well, so no bulk has its turn for a second.
        while quotas.tunnel(Urgency::Urgent, false, now).is_ok() {}
        let bulk = (0..WAITING_MAX + 8).map(|_| quotas.turn(Urgency::Bulk, false));
        let (bulk, urgent) = tokio::join!(
            futures::future::join_all(bulk),
            quotas.turn(Urgency::Urgent, false)
        );
        assert!(urgent.is_ok(), "bulk takes no place of an alert");
        let refused = bulk.iter().filter(|place| place.is_err()).count();
        assert_eq!(refused, 8, "no more wait than the bound");
    }
}
