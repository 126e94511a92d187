use super::*;

#[test]
fn every_embedded_file_is_good() {
    let (catalogue, refused) = Catalogue::load(embedded::FILES.iter().copied());
    assert_eq!(refused, []);
    assert_eq!(catalogue.models().len(), embedded::FILES.len());
    for (model, (file, _)) in catalogue.models().iter().zip(embedded::FILES) {
        assert_eq!(format!("{}.toml", model.id), *file, "a file is named after its model");
    }
}
