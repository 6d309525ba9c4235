//! RESP front-end: the Qless API without a Redis, and our own batches.
