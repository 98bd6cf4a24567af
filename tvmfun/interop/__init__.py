"""Programs from elsewhere: what other systems wrote becomes Programs, which every transform works on."""
