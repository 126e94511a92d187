//! Cases by behaviour, written as small worlds; properties over random ones.

mod build;
mod dear;
mod devices;
mod explaining;
mod holding;
mod properties;
mod releases;
mod requests;
mod sharing;
mod world;
