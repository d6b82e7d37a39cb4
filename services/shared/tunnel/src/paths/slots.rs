//! The slots of a client's access networks: each has a name and, while the network exists, a
//! socket.
//!
//! Networks come and go while connections live, so a connection knows a network only by its slot.
//! The transport's local address is a label of the slot ([`label`]) and never a real address. So
//! two modems that both assign 192.168.8.100 stay two networks. A network that returns with another
//! address keeps its label, and the server sees a change of the client's address on that path.
//!
//! Bound: `SLOTS_MAX` slots. A removed network keeps its slot until a new one finds no other; a
//! network beyond that is refused.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use futures::task::AtomicWaker;
use noq::AsyncUdpSocket;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::sockets::{
    datagrams::{DatagramCounts, Datagrams},
    interface::{Interface, device_index},
};

/// Slots; the upkeep accepts as many interfaces.
pub(crate) const SLOTS_MAX: usize = 16;

/// Segments that a receive call of the kernel may join into one buffer; the default if no socket
/// reports its own.
const RECEIVE_SEGMENTS: NonZeroUsize = match NonZeroUsize::new(64) {
    Some(segments) => segments,
    None => NonZeroUsize::MIN,
};

/// The discard prefix of RFC 6666: no packet has such an address.
const LABEL_PREFIX: u16 = 0x0100;

/// The transport's local address of a slot.
pub(crate) fn label(slot: usize) -> IpAddr {
    let slot = u16::try_from(slot).unwrap_or(u16::MAX);
    Ipv6Addr::new(LABEL_PREFIX, 0, 0, 0, 0, 0, 0, slot).into()
}

/// The slot of a label.
pub(crate) fn slot_of(label: IpAddr) -> Option<usize> {
    match label {
        IpAddr::V6(ip) => match ip.segments() {
            [LABEL_PREFIX, 0, 0, 0, 0, 0, 0, slot] => Some(slot.into()),
            _ => None,
        },
        IpAddr::V4(_) => None,
    }
}

/// A socket that the endpoint receives from, and that each connection makes its senders of. The
/// lock is rarely contended: the endpoint holds it while it receives, and senders are made only for
/// a new network or connection.
pub(crate) type SharedSocket = Arc<Mutex<Box<dyn AsyncUdpSocket>>>;

#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub(crate) local_ip: IpAddr,
    pub(crate) device: Option<String>,
    pub(crate) socket: SharedSocket,
}

#[derive(Debug, Clone)]
struct Slot {
    name: Arc<str>,
    up: bool,
    /// Rises whenever the slot should be tried at once.
    arrivals: u64,
    attached: Option<Attached>,
}

/// A slot in the upkeep's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotState {
    pub(crate) name: Arc<str>,
    pub(crate) up: bool,
    pub(crate) arrivals: u64,
    pub(crate) local_ip: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    #[error("more than {SLOTS_MAX} access networks at once")]
    Full,
    #[error("its socket joins more datagrams than the endpoint has room for")]
    Segments,
}

/// The table of slots, shared by the endpoint, its connections, and the followers of networks.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Mutex<Vec<Slot>>,
    /// Rises with every change of a socket.
    generation: AtomicU64,
    /// The task that receives.
    receiver: AtomicWaker,
    receive_segments: NonZeroUsize,
    datagrams: Datagrams,
    changes: watch::Sender<u64>,
    /// One bit for each slot whose last news is a refusal of UDP (`icmp`).
    refused: AtomicU32,
    refusals: watch::Sender<()>,
}

impl Slots {
    /// Interfaces beyond `SLOTS_MAX` are left out.
    pub(crate) fn new(interfaces: Vec<Interface>) -> Arc<Self> {
        let segments = interfaces
            .iter()
            .map(|interface| interface.socket.max_receive_segments())
            .max()
            .unwrap_or(RECEIVE_SEGMENTS);
        let slots = Arc::new(Self {
            slots: Mutex::default(),
            generation: AtomicU64::new(0),
            receiver: AtomicWaker::new(),
            receive_segments: segments,
            datagrams: Datagrams::new(),
            changes: watch::Sender::new(0),
            refused: AtomicU32::new(0),
            refusals: watch::Sender::new(()),
        });
        for interface in interfaces {
            let name = interface.name.clone();
            if let Err(error) = slots.attach(interface) {
                tracing::warn!(name, %error, "access network left out");
            }
        }
        slots
    }

    /// Gives the network of that name this socket, in its old slot if it had one, and lets it be
    /// tried at once.
    pub(crate) fn attach(&self, interface: Interface) -> Result<usize, AttachError> {
        if interface.socket.max_receive_segments() > self.receive_segments {
            return Err(AttachError::Segments);
        }
        let index = {
            let mut slots = self.slots.lock();
            let index = match slots.iter().position(|slot| *slot.name == *interface.name) {
                Some(index) => index,
                None if slots.len() < SLOTS_MAX => {
                    slots.push(Slot {
                        name: interface.name.as_str().into(),
                        up: true,
                        arrivals: 0,
                        attached: None,
                    });
                    slots.len() - 1
                }
                None => {
                    let vacant = slots.iter().position(|slot| slot.attached.is_none());
                    vacant.ok_or(AttachError::Full)?
                }
            };
            let slot = &mut slots[index];
            slot.name = interface.name.as_str().into();
            slot.up = true;
            slot.arrivals += 1;
            slot.attached = Some(Attached {
                local_ip: interface.local_ip,
                device: interface.device,
                socket: Arc::new(Mutex::new(self.datagrams.of(interface.socket))),
            });
            index
        };
        self.heard(index);
        self.sockets_changed();
        Ok(index)
    }

    /// Removes the network with its socket; returns whether it existed.
    pub(crate) fn detach(&self, name: &str) -> bool {
        let gone = {
            let mut slots = self.slots.lock();
            slots
                .iter_mut()
                .find(|slot| &*slot.name == name)
                .map(|slot| {
                    slot.up = false;
                    slot.attached.take()
                })
        };
        let was_there = matches!(gone, Some(Some(_)));
        if was_there {
            self.sockets_changed();
        }
        was_there
    }

    /// Marks the network as working or not; its socket stays. "Up" lets it be tried at once.
    pub(crate) fn set_up(&self, name: &str, up: bool) {
        {
            let mut slots = self.slots.lock();
            let Some(index) = slots.iter().position(|slot| &*slot.name == name) else {
                return;
            };
            let slot = &mut slots[index];
            slot.up = up && slot.attached.is_some();
            slot.arrivals += u64::from(slot.up);
            self.heard(index);
        }
        self.changed();
    }

    fn sockets_changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.receiver.wake();
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
        // Where a network has gone, all that are left may refuse.
        self.refusals.send_replace(());
    }

    /// Notified of every change; read the [`Slots::states`] then.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Must be called by the receiving task before it reads the generation.
    pub(crate) fn register(&self, waker: &std::task::Waker) {
        self.receiver.register(waker);
    }

    pub(crate) fn datagrams(&self) -> DatagramCounts {
        self.datagrams.counts()
    }

    pub(crate) fn receive_segments(&self) -> NonZeroUsize {
        self.receive_segments
    }

    /// The sockets by slot.
    pub(crate) fn attached(&self) -> Vec<Option<Attached>> {
        let slots = self.slots.lock();
        slots.iter().map(|slot| slot.attached.clone()).collect()
    }

    pub(crate) fn states(&self) -> Vec<SlotState> {
        let slots = self.slots.lock();
        slots
            .iter()
            .map(|slot| SlotState {
                name: slot.name.clone(),
                up: slot.up,
                arrivals: slot.arrivals,
                local_ip: slot.attached.as_ref().map(|attached| attached.local_ip),
            })
            .collect()
    }

    /// A datagram over the slot was refused.
    pub(crate) fn refused(&self, slot: usize) {
        let bit = 1 << slot;
        if self.refused.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.refusals.send_replace(());
        }
    }

    /// A datagram has arrived over the slot, or it has another network: what was refused before
    /// says nothing any more.
    pub(crate) fn heard(&self, slot: usize) {
        let bit = 1 << slot;
        if self.refused.load(Ordering::Relaxed) & bit != 0 {
            self.refused.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Notified when a slot begins to refuse, and of every change of networks.
    pub(crate) fn watch_refusals(&self) -> watch::Receiver<()> {
        self.refusals.subscribe()
    }

    /// Whether every working network refuses UDP, of those that `leads` to the proxy by the family
    /// of their address.
    pub(crate) fn all_refuse(&self, leads: impl Fn(&IpAddr) -> bool) -> bool {
        let refused = self.refused.load(Ordering::Relaxed);
        let slots = self.slots.lock();
        let ways = slots.iter().enumerate().filter(|(_, slot)| {
            let attached = slot.attached.as_ref();
            slot.up && attached.is_some_and(|attached| leads(&attached.local_ip))
        });
        let mut ways = ways.peekable();
        ways.peek().is_some() && ways.all(|(index, _)| refused & 1 << index != 0)
    }

    /// Number of arrivals of networks so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.slots.lock().iter().map(|slot| slot.arrivals).sum()
    }

    /// The working networks by name, with the address and device that a socket over each is bound
    /// to.
    pub(crate) fn ways(&self) -> Vec<(Arc<str>, IpAddr, Option<String>)> {
        let slots = self.slots.lock();
        let up = slots.iter().filter(|slot| slot.up);
        up.filter_map(|slot| {
            let attached = slot.attached.as_ref()?;
            let device = attached.device.clone();
            Some((slot.name.clone(), attached.local_ip, device))
        })
        .collect()
    }

    pub(crate) fn any_up(&self) -> bool {
        self.slots.lock().iter().any(|slot| slot.up)
    }

    /// The network that a socket with this address uses, which is bound to the device of this
    /// index. Two networks may have given the same private address.
    pub(crate) fn name_at(&self, local_ip: IpAddr, device: u32) -> Option<Arc<str>> {
        let slots = self.slots.lock();
        let of = |fits: &dyn Fn(&Attached) -> bool| {
            let mut fitting = slots
                .iter()
                .filter(|slot| slot.attached.as_ref().is_some_and(fits));
            fitting.next().map(|slot| slot.name.clone())
        };
        let is_there = |attached: &Attached| attached.local_ip == local_ip;
        let is_bound = |attached: &Attached| {
            let bound_to = attached.device.as_deref().and_then(device_index);
            is_there(attached) && bound_to == Some(device)
        };
        let is_any = |attached: &Attached| {
            let any = attached.local_ip;
            any.is_unspecified() && any.is_ipv6() == local_ip.is_ipv6()
        };
        let bound = (device != 0).then(|| of(&is_bound)).flatten();
        bound.or_else(|| of(&is_there)).or_else(|| of(&is_any))
    }

    /// The real address behind a label; other addresses are unchanged.
    pub(crate) fn address(&self, label: IpAddr) -> Option<IpAddr> {
        match slot_of(label) {
            Some(index) => {
                let slots = self.slots.lock();
                let attached = slots.get(index)?.attached.as_ref()?;
                Some(attached.local_ip)
            }
            None => Some(label),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_for_slots() {
        for slot in [0, 1, SLOTS_MAX - 1] {
            assert_eq!(slot_of(label(slot)), Some(slot));
        }
        assert_eq!(slot_of(IpAddr::from([127, 0, 0, 1])), None);
        assert_eq!(slot_of("100::1:0".parse().expect("an address")), None);
    }
}
