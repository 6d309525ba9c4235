//! Release of segments that a checkpoint has replaced.

use super::WalError;
use super::disk::Disk;
use super::segment::segment_name;

/// A segment's number, and the name of the spare that it becomes, if it is kept for reuse.
type LeavingSegment = (u64, Option<String>);

/// Segments to be released. The log expects the result in `finish_release`.
pub(crate) struct SegmentRelease {
    pub(super) segments: Vec<LeavingSegment>,
}

/// The result of a release.
#[derive(Default)]
pub(crate) struct ReleasedSegments {
    /// The released segments. If nothing failed they may be overwritten.
    pub(super) segments: Vec<LeavingSegment>,
    pub(super) failure: Option<WalError>,
}

impl SegmentRelease {
    /// Renames or removes the segments; may run as a background task.
    pub(crate) fn run(self, disk: &dyn Disk) -> ReleasedSegments {
        let mut released = ReleasedSegments::default();
        if self.segments.is_empty() {
            return released;
        }
        for (number, spare) in self.segments {
            let name = segment_name(number);
            let done = match &spare {
                Some(spare) => disk.rename(&name, spare),
                None => disk.remove(&name),
            };
            if let Err(error) = done {
                released.failure = Some(error.into());
                break;
            }
            released.segments.push((number, spare));
        }
        // Before they can be overwritten: otherwise a crash could bring back the old name with another
        // segment's header.
        if let Err(error) = disk.sync_directory() {
            released.failure = Some(WalError::Io(error));
        }
        released
    }
}
