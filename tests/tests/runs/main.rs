//! Local runs: commands with a part of a card, their supervisors, governors and the live view.

mod beside_agent;
mod bypass;
mod govern;
mod living;
mod residue;
mod run;
mod stop;
mod tenants;
mod top;
