//! Joins one backend to the front-ends.
