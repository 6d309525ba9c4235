//! Segments that nobody needs any more, on their way out.

use super::LogError;
use super::disk::Disk;
use super::segment::segment_name;

/// A segment's number, and the name of the spare that it becomes, if it is worth keeping.
type Leaving = (u64, Option<String>);

/// Segments that are to go. The log has given their names away, and must hear what became of it.
pub(crate) struct Release {
    pub(super) segments: Vec<Leaving>,
}

/// What has become of them.
#[derive(Default)]
pub(crate) struct Released {
    /// Those that are gone. If nothing failed they may be overwritten.
    pub(super) segments: Vec<Leaving>,
    pub(super) failure: Option<LogError>,
}

impl Release {
    /// Does on the disk what there is to do, beside everything else if need be.
    pub(crate) fn carry_out(self, disk: &dyn Disk) -> Released {
        let mut released = Released::default();
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
        // Before they can be overwritten: otherwise a crash could bring the old name back, above another segment's header.
        if let Err(error) = disk.sync_directory() {
            released.failure = Some(LogError::Io(error));
        }
        released
    }
}
