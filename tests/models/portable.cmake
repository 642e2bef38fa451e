# Export and import of tables and of whole models.
hotrow_add_test(
  NAME models_portable_test
  NO_TSAN
  SOURCES delta_chain_test.cc
          delta_rows_test.cc
          portable_model_test.cc
          portable_tables_test.cc
  DEPS hotrow::models nlohmann_json::nlohmann_json ZLIB::ZLIB
  SLOW "PortableModelTest.AFault*")
