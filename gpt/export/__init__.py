"""Export a trained model: as a page that runs it, or in the formats of other libraries."""
