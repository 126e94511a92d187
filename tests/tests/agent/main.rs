//! The node agent: kubelet protocol, publication, Kubernetes client and manifests of its deployment.

mod api_kills;
mod burst;
mod bypass;
mod cluster_client;
mod deploy;
mod directories;
mod doctor;
mod driver_reload;
mod health;
mod host_files;
mod hostile_names;
mod hung_card;
mod kubelet_protocol;
mod maintenance;
mod metrics;
mod nvidia_cards;
mod orphans;
mod policy;
mod publisher;
mod random_calls;
mod refused_status;
mod restored_server;
mod rolling_update;
mod selinux;
mod server_versions;
mod waits;
