//! Reading from a medium with bad sectors, and setting its damaged files aside.

use std::io;

use super::disk::Disk;

/// Unit of reads around a bad sector; a bad sector loses at most this much more than itself.
const PAGE_BYTES: u64 = 4096;
/// Damaged files kept for inspection, beside the journal's `bytes_max`; at the bound the oldest is
/// removed.
pub(super) const ASIDE_MAX: usize = 4;
const ASIDE: &str = ".damaged";

/// Whether the medium has lost this file, while other files may be readable. Other errors, such as
/// a missing right, concern all files.
pub(super) fn is_of_medium(error: &io::Error) -> bool {
    // Linux: EIO, ENODATA (XFS, and some drivers), EBADMSG and EUCLEAN (checksums), EILSEQ
    // (dm-integrity), EREMOTEIO.
    matches!(error.raw_os_error(), Some(5 | 61 | 74 | 84 | 117 | 121))
}

/// Bytes from `offset` up to the first bad sector, and whether a bad sector lies before `length`
/// and the file's end.
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

/// The file's length, whatever part of it is readable; searched up to `bytes_max`.
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

/// Moves a file out of the journal and keeps it for inspection.
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
