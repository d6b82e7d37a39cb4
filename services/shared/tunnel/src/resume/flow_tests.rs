//! The state machine of one end: windows, copies, violations of the protocol.

#![allow(clippy::unwrap_used)]

use bytes::{Bytes, BytesMut};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    capsule,
    flow::{AttachRefused, Carrier, Flow, Violation, WINDOW_BYTES},
    header::{Attach, Attached},
};

const SEEDS: u64 = 100;

/// All bytes that an end would send on one attachment.
fn emitted(flow: &mut Flow) -> Bytes {
    let mut all = BytesMut::new();
    while let Some(bytes) = flow.emit() {
        all.extend_from_slice(&bytes);
    }
    all.freeze()
}

#[test]
fn the_window_stops_the_writer_and_confirmations_release_it() {
    let (mut one, mut other) = (Flow::default(), Flow::default());
    let mut written = 0;
    while one.room() > 0 {
        let length = one.room().min(32 * 1024);
        one.write(&vec![7; length]);
        written += length;
        other
            .receive(Carrier::Original, emitted(&mut one), true)
            .unwrap();
    }
    assert!(
        written as u64 <= WINDOW_BYTES && written as u64 > WINDOW_BYTES - 40_000,
        "{written}"
    );
    assert_eq!(other.unread_bytes(), written);
    let mut read = 0;
    while let Some(piece) = other.read(32 * 1024) {
        read += piece.len();
    }
    assert_eq!(read, written);
    one.receive(Carrier::Original, emitted(&mut other), false)
        .unwrap();
    assert!(one.room() as u64 > WINDOW_BYTES - 200_000, "{}", one.room());
}

#[test]
fn tiny_writes_close_the_window_before_they_fill_the_memory() {
    let mut flow = Flow::default();
    let mut count = 0;
    while flow.room() > 0 {
        flow.write(b"x");
        let _ = emitted(&mut flow);
        count += 1;
    }
    assert!(count < 70_000, "{count}");
}

#[test]
fn tiny_writes_that_wait_travel_together() {
    let (mut one, mut other) = (Flow::default(), Flow::default());
    for _ in 0..10_000 {
        one.write(b"x");
    }
    let wire = emitted(&mut one);
    assert!(wire.len() < 10_020, "{}", wire.len());
    other.receive(Carrier::Original, wire, false).unwrap();
    assert_eq!(other.unread_bytes(), 10_000);
}

#[test]
fn a_stale_attachment_and_impossible_offsets_are_refused() {
    let mut flow = Flow::default();
    flow.write(b"abc");
    let _ = emitted(&mut flow);
    let at = |epoch, received| Attach {
        epoch,
        received,
        is_copy: false,
    };
    let answer = |received| {
        Ok(Attached {
            received,
            takes_copies: true,
        })
    };
    assert_eq!(flow.attach(at(2, 3)), answer(0));
    assert_eq!(flow.attach(at(2, 0)), Err(AttachRefused::Stale));
    assert_eq!(flow.attach(at(1, 0)), Err(AttachRefused::Stale));
    assert!(matches!(
        flow.attach(at(3, 4)),
        Err(AttachRefused::Violation(Violation::Offset { .. }))
    ));
    // Confirmed bytes are dropped.
    let mut peer = Flow::default();
    let data = Bytes::from_static(b"\x7b\x01\x04\0abc");
    peer.receive(Carrier::Original, data, false).unwrap();
    peer.read(3);
    peer.end();
    flow.receive(Carrier::Original, emitted(&mut peer), false)
        .unwrap();
    let mut confirm = BytesMut::new();
    capsule::put(&mut confirm, &capsule::Capsule::Confirm(2));
    flow.receive(Carrier::Original, confirm.freeze(), false)
        .unwrap();
    assert_eq!(flow.attach(at(3, 1)), answer(1));
    assert_eq!(
        &emitted(&mut flow)[..],
        b"\x7b\x02\x01\x01\x7b\x01\x02\x02c"
    );
}

/// The carrying stream stands still, as on a path that is cut.
#[test]
fn the_copy_alone_brings_everything_and_leaves_out_confirmed_bytes() {
    let (mut one, mut other) = (Flow::default(), Flow::default());
    one.write(b"before");
    other
        .receive(Carrier::Original, emitted(&mut one), false)
        .unwrap();
    let answer = other.copy(one.begin_copy()).unwrap();
    assert_eq!((answer.received, answer.takes_copies), (6, true));
    one.copied(answer.received).unwrap();
    one.write(b" and after");
    one.end();
    let mut copy = BytesMut::new();
    while let Some(bytes) = one.emit_copy() {
        copy.extend_from_slice(&bytes);
    }
    // Only the bytes after the beginning of the copy.
    assert!(copy.len() < 20, "{copy:?}");
    other.receive(Carrier::Copy, copy.freeze(), false).unwrap();
    let mut read = other.read(100).unwrap().to_vec();
    read.extend_from_slice(&other.read(100).unwrap());
    assert_eq!(read, b"before and after");
    assert!(other.is_read_to_end());
    // The original comes late, and changes nothing.
    other
        .receive(Carrier::Original, emitted(&mut one), false)
        .unwrap();
    assert_eq!(other.read(100), None);
    one.receive(Carrier::Original, emitted(&mut other), false)
        .unwrap();
    assert!(one.is_confirmed() && one.emit_copy().is_none());
    // A copy that is far behind goes on with the next bytes; these wait for those before them.
    let (mut one, mut other) = (Flow::default(), Flow::default());
    one.copied(0).unwrap();
    other.copy(one.begin_copy()).unwrap();
    one.write(&[1; 100_000]);
    assert_eq!(one.emit_copy(), None);
    one.write(b"next");
    let next = one.emit_copy().unwrap();
    other.receive(Carrier::Copy, next, false).unwrap();
    assert_eq!(other.read(1), None);
    other
        .receive(Carrier::Original, emitted(&mut one), false)
        .unwrap();
    assert_eq!(other.unread_bytes(), 100_004);
    // An attachment begins without copies, and an epoch before it has none.
    let straggler = one.begin_copy();
    other.attach(one.begin_attach()).unwrap();
    assert_eq!(other.copy(straggler), Err(AttachRefused::Stale));
    assert_eq!(other.emit_copy(), None);
}

#[test]
fn a_peer_that_violates_the_protocol_is_detected() {
    use capsule::{Capsule, put};
    let receive = |capsules: &[Capsule]| {
        let mut wire = BytesMut::new();
        for capsule in capsules {
            put(&mut wire, capsule);
        }
        Flow::default().receive(Carrier::Original, wire.freeze(), false)
    };
    let data = |length| Capsule::Data(0, vec![1; length].into());
    let late = Capsule::Data(5, vec![1].into());
    assert!(receive(&[data(WINDOW_BYTES as usize)]).is_ok());
    assert_eq!(
        receive(&[data(WINDOW_BYTES as usize + 1)]),
        Err(Violation::Window)
    );
    assert_eq!(
        receive(&[data(5), Capsule::End(5), late.clone()]),
        Err(Violation::BehindEnd)
    );
    let (offset, received) = (5, 4);
    assert_eq!(
        receive(&[data(4), late]),
        Err(Violation::Gap { offset, received })
    );
    for declared in [4, 6] {
        assert_eq!(
            receive(&[data(5), Capsule::End(declared)]),
            Err(Violation::End {
                declared,
                received: 5
            })
        );
    }
    assert!(matches!(
        receive(&[Capsule::Confirm(1)]),
        Err(Violation::Offset { .. })
    ));
}

/// Random bytes from a hostile peer give an error or nothing, never a panic, and never more than
/// the window.
#[test]
fn random_bytes_do_no_harm() {
    for seed in 0..SEEDS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut flow = Flow::default();
        flow.write(&[1; 1000]);
        for _ in 0..50 {
            let mut bytes = vec![0; random.random_range(0..2000)];
            random.fill_bytes(&mut bytes);
            // Half of them begin like a valid capsule.
            if random.random_range(0..2) == 0 && bytes.len() > 4 {
                bytes[0] = 0x7b;
                bytes[1] = random.random_range(1..7);
            }
            let from = match random.random_range(0..2) {
                0 => Carrier::Original,
                _ => Carrier::Copy,
            };
            let received = flow.receive(from, bytes.into(), random.random_range(0..2) == 0);
            assert!(flow.unread_bytes() as u64 <= WINDOW_BYTES + 1);
            let _ = emitted(&mut flow);
            if received.is_err() {
                break;
            }
        }
    }
}
