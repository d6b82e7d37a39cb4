//! What a medium with bad sectors still gives, and what is done with the files on them.

use std::io;

use super::disk::Disk;

/// A bad sector costs at most so much more than itself.
const PAGE_BYTES: u64 = 4096;
/// Files kept for people; of more the oldest goes. They are not part of the journal's `bytes_max`.
pub(super) const ASIDE_MAX: usize = 4;
const ASIDE: &str = ".damaged";

/// Whether the medium has lost what was asked for: another file may be well. Anything else, a missing right say, is of the whole.
pub(super) fn is_of_medium(error: &io::Error) -> bool {
    // Linux: EIO, ENODATA (XFS, and some drivers), EBADMSG and EUCLEAN (checksums), EILSEQ (dm-integrity), EREMOTEIO.
    matches!(error.raw_os_error(), Some(5 | 61 | 74 | 84 | 117 | 121))
}

/// Bytes from `offset` up to the first bad sector, and whether there is one before `length` and the file's end.
pub(super) fn read_prefix<D: Disk>(
    disk: &D,
    name: &str,
    offset: u64,
    length: usize,
) -> io::Result<(Vec<u8>, bool)> {
    match disk.read_at(name, offset, length) {
        Err(error) if is_of_medium(&error) => {}
        read => return Ok((read?, false)),
    }
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let at = offset + bytes.len() as u64;
        let page = usize::try_from(PAGE_BYTES - at % PAGE_BYTES).unwrap_or(usize::MAX);
        let page = page.min(length - bytes.len());
        match disk.read_at(name, at, page) {
            Ok(read) => {
                bytes.extend_from_slice(&read);
                if read.len() < page {
                    break;
                }
            }
            Err(error) if is_of_medium(&error) => return Ok((bytes, true)),
            Err(error) => return Err(error),
        }
    }
    Ok((bytes, false))
}

/// Where the file ends, whatever can be read of it; it is looked for up to `bytes_max`.
pub(super) fn length<D: Disk>(disk: &D, name: &str, from: u64, bytes_max: u64) -> u64 {
    let mut at = from;
    while at < bytes_max {
        let page = PAGE_BYTES - at % PAGE_BYTES;
        match disk.read_at(name, at, usize::try_from(page).unwrap_or(usize::MAX)) {
            Ok(read) if (read.len() as u64) < page => return at + read.len() as u64,
            Ok(_) | Err(_) => at += page,
        }
    }
    at
}

/// Takes a file out of the journal and keeps it for people.
pub(super) fn set_aside<D: Disk>(disk: &D, name: &str) -> io::Result<()> {
    let mut aside = disk.list()?;
    aside.retain(|name| name.ends_with(ASIDE));
    aside.sort_unstable();
    let leaving = (aside.len() + 1).saturating_sub(ASIDE_MAX);
    for oldest in aside.iter().take(leaving) {
        disk.remove(oldest)?;
    }
    tracing::error!(
        file = format!("{name}{ASIDE}"),
        "a damaged segment is set aside"
    );
    disk.rename(name, &format!("{name}{ASIDE}"))
}
