"""The transformations, one file each; in folders, what families of them share."""
