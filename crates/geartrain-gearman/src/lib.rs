//! Gearman: the protocol codecs, the front-end ([`front`]), and any Gearman server as a backend ([`client`]).
//!
//! Three protocols share one port: the current binary protocol ([`packet`]), the draft of 2005 ([`draft`])
//! and admin commands in text lines ([`text`]). A [`Parser`] detects the protocol and cuts the received bytes
//! into packets and lines, which the module of the protocol decodes. The codecs serve both sides and use no
//! socket: a server decodes requests and encodes responses, a client does the reverse.
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
