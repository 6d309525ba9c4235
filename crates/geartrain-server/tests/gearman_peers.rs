//! Unmodified Gearman clients, workers and admin tools against a geartrain server: Debian's tools, two
//! libraries for Python and one for Node.
//!
//! The programs that use the libraries are in peers/gearman-py and peers/gearman-node.

mod libraries;
mod mixed;
mod program;
mod tools;
