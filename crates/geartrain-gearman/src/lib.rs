//! Gearman's three languages, without a socket: bytes to packets and lines, and back.
//!
//! Today's binary protocol ([`packet`]), the draft of 2005 ([`draft`]) and lines for administrators ([`text`]) come in over one port. A [`Parser`] finds out which it is
//! and cuts what was read into pieces; each piece is then decoded by its own module. Both ends are here: a server decodes requests and encodes responses, a client the other way round.
//!
//! ```
//! use bytes::BytesMut;
//! use geartrain_gearman::packet::{Request, Response};
//! use geartrain_gearman::{Incoming, Options, Parser, text};
//!
//! let mut parser = Parser::server(Options::default());
//! let mut received = BytesMut::from(&b"\0REQ\0\0\0\x10\0\0\0\x05hellogetpid\n"[..]);
//! let mut answers = BytesMut::new();
//! while let Some(incoming) = parser.next(&mut received)? {
//!     match incoming {
//!         Incoming::Packet(packet) => match Request::decode(packet) {
//!             Ok(Request::Echo { data }) => Response::Echo { data }.encode(&mut answers)?,
//!             Ok(other) => unimplemented!("{other:?}"),
//!             Err(fault) => fault.encode(&mut answers),
//!         },
//!         Incoming::Line(line) => match text::Command::parse(&line, false) {
//!             Ok(text::Command::GetPid) => text::write_value(&mut answers, 12345),
//!             Ok(other) => unimplemented!("{other:?}"),
//!             Err(refused) => refused.write(&mut answers),
//!         },
//!         Incoming::Misdirected { .. } | Incoming::Draft(_) => unimplemented!(),
//!     }
//! }
//! assert_eq!(&answers[..], b"\0RES\0\0\0\x11\0\0\0\x05helloOK 12345\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod client;
pub mod draft;
mod frame;
pub mod front;
mod function;
pub mod packet;
pub mod text;
mod writer;

pub use frame::{FramingError, Incoming, Options, Parser, unpinned};
pub use writer::EncodeError;
